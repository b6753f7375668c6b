"""KV on disk: the prefix store, the slots' index files, and the thread that writes behind.

For: the engine process, which keeps what it has computed, and `coli cache`. Not for: the engine
itself: blocks are opaque bytes here, and nothing of this package knows the engine's binding.

    store      blocks of KV by what they stand for: put, match, read, within a budget of bytes
    slots      `.coli_kv`, `.coli_kv.1`, ...: what a slot held, as ids of blocks
    writer     a thread that puts blocks while nobody is kept waiting
    inventory  what lies in a store's folder, without knowing the model

    parked     unfinished chunks of prompts, in pieces

    chains, segments, blocks, lock, files    parts of the store
"""
