"""The atlas: which topics a model's experts are asked for, measured and told.

    topics   prompts by topic, in two sets that share none
    measure  one prompt's tokens and what its answer counted
    runs     the file that a measurement grows in, prompt by prompt
    analysis counts -> affinity, specialists, and whether any of it is more than chance
    file     `experts.json`: written whole, read with suspicion

For: `coli atlas` and `GET /api/atlas`. Not for: the engine's own counting (`engine.ffi_routed`), or
where points of a drawing lie, which is the page's.
"""
