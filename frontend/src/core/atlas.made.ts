/**
 * A made-up atlas for tests: topics in related pairs, generalists mostly, some specialists.
 *
 * Numbers come from a small generator, so it is the same every time.
 */
export const MADE_TOPICS = [
  "code",
  "mathematics",
  "law",
  "medicine",
  "cooking",
  "poetry",
  "history",
  "music",
  "travel",
  "German",
  "Chinese",
  "everyday talk",
];

/** The answer of `GET /api/atlas`; layers count from `first` on, behind a model's dense ones. */
export function madeUp(topics: number, layers: number, experts: number, first = 3) {
  const categories = MADE_TOPICS.slice(0, topics);
  const made = {
    version: 1,
    model: "made-up",
    categories,
    cols: experts,
    layer: [] as number[],
    expert: [] as number[],
    top: [] as number[],
    specialist: [] as boolean[],
    entropy: [] as number[],
    affinity: [] as number[],
    tokens: null,
    measurement: {
      measured_at_ms: 1_790_000_000_000,
      topics,
      prompts: topics * 16,
      tokens: topics * 16 * 300,
      counted: "both",
      left_out: 5,
      specialists: 0,
      mutual_information_bits: 0.21,
      chance_bits: 0.013,
      prediction: 0.84,
      prediction_chance: 1 / topics,
    },
  };
  let seed = 7;
  const random = () => {
    seed = (Math.imul(seed, 1_103_515_245) + 12_345) & 0x7fffffff;
    return seed / 0x80000000;
  };
  for (let layer = 0; layer < layers; layer++) {
    for (let expert = 0; expert < experts; expert++) {
      const favourite = Math.floor(random() * topics);
      // Later layers specialise more; the topic beside the favourite is asked for more than others.
      const strength = random() ** 2 * (0.4 + (1.6 * layer) / layers) * 18;
      const weights = categories.map((_, topic) => {
        const pull = topic === favourite ? 2 : topic === (favourite ^ 1) ? 0.25 : 0;
        return (0.3 + random() * 0.7) * (1 + pull * strength);
      });
      const sum = weights.reduce((a, b) => a + b);
      const parts = weights.map((weight) => weight / sum);
      const entropy = parts.reduce((bits, part) => bits - part * Math.log2(part), 0);
      const specialist = 1 - entropy / Math.log2(topics) >= 0.5;
      made.layer.push(layer + first);
      made.expert.push(expert);
      made.top.push(parts.indexOf(Math.max(...parts)));
      made.specialist.push(specialist);
      made.entropy.push(Math.round(entropy * 1e4) / 1e4);
      made.affinity.push(...parts.map((part) => Math.round(part * 1000)));
      if (specialist) made.measurement.specialists++;
    }
  }
  return made;
}

/** The same as a file `experts.json`, which a server reads. */
export function madeUpFile(topics: number, layers: number, experts: number, first = 3) {
  const made = madeUp(topics, layers, experts, first);
  const entries = made.layer.map((layer, at) => {
    const top = made.categories[made.top[at] ?? 0] ?? "";
    const affinity = made.categories.map((name, topic) => [
      name,
      (made.affinity[at * topics + topic] ?? 0) / 1000,
    ]);
    const label = made.specialist[at] ? `specialist: ${top}` : "generalist";
    const entry = { affinity: Object.fromEntries(affinity), entropy: made.entropy[at], top, label };
    return [`${layer}:${made.expert[at]}`, entry];
  });
  return { categories: made.categories, experts: Object.fromEntries(entries) };
}
