// Steps of the Anthropic SDK: node anthropic.mjs STEP BASE_URL; prints one JSON object.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(`${process.env.CLIENT_FOLDER}/package.json`);
const { default: Anthropic } = await import(pathToFileURL(require.resolve("@anthropic-ai/sdk")).href);

const [step, baseURL] = process.argv.slice(2);
const client = new Anthropic({ baseURL, apiKey: "local", maxRetries: step === "busy" ? 5 : 0 });
const model = "local-model";
const messages = [{ role: "user", content: "What is the capital of France?" }];
const weather = {
  name: "get_weather",
  description: "Get the weather of a city.",
  input_schema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
};
const textOf = (message) => message.content.filter((b) => b.type === "text").map((b) => b.text).join("");

const steps = {
  async models() {
    const ids = [];
    for await (const found of client.models.list()) ids.push(found.id);
    return { ids, one: (await client.models.retrieve(ids[0])).id };
  },
  async chat() {
    const answer = await client.messages.create({ model, messages, max_tokens: 30, temperature: 0 });
    return { text: textOf(answer), reason: answer.stop_reason, usage: answer.usage };
  },
  async stream() {
    const events = {};
    const stream = client.messages.stream({ model, messages, max_tokens: 30, temperature: 0 });
    let text = "";
    stream.on("text", (piece) => { text += piece; });
    stream.on("streamEvent", (event) => { events[event.type] = (events[event.type] ?? 0) + 1; });
    const answer = await stream.finalMessage();
    return { text: textOf(answer), same: text === textOf(answer), reason: answer.stop_reason, usage: answer.usage, events };
  },
  async stop() {
    try {
      await client.messages.create({ model, messages, max_tokens: 30, stop_sequences: ["Paris"] });
    } catch (error) {
      return { status: error.status, type: error.error?.error?.type, message: error.message };
    }
    return {};
  },
  async count() {
    const counted = await client.messages.countTokens({ model, messages, system: "Be brief.", tools: [weather] });
    const answer = await client.messages.create({ model, messages, system: "Be brief.", tools: [weather], max_tokens: 1 });
    const { input_tokens, cache_read_input_tokens, cache_creation_input_tokens } = answer.usage;
    return { counted: counted.input_tokens, used: input_tokens + (cache_read_input_tokens ?? 0) + (cache_creation_input_tokens ?? 0) };
  },
  async overflow() {
    const content = "one two three ".repeat(20000);
    try {
      await client.messages.create({ model, messages: [{ role: "user", content }], max_tokens: 10 });
    } catch (error) {
      return { status: error.status, type: error.error?.error?.type, message: error.error?.error?.message };
    }
    return {};
  },
  async busy() {
    return { text: textOf(await client.messages.create({ model, messages, max_tokens: 30 })) };
  },
  async abort() {
    const stream = await client.messages.create({ model, messages, max_tokens: 20000, stream: true });
    for await (const event of stream) if (event.type === "content_block_delta") break;
    return { left: true };
  },
  async tools() {
    const cities = [];
    const runner = client.beta.messages.toolRunner({
      model, messages, max_tokens: 1000,
      stream: process.argv[4] === "stream",
      tools: [{ ...weather, run: ({ city }) => { cities.push(city); return "sunny"; } }],
    });
    const answer = await runner.runUntilDone();
    return { text: textOf(answer), cities };
  },
  async forced() {
    const answer = await client.messages.create({
      model, messages, max_tokens: 200, temperature: 0, tools: [weather],
      tool_choice: { type: "any", disable_parallel_tool_use: true },
    });
    const call = answer.content.find((block) => block.type === "tool_use");
    return { name: call?.name, input: call?.input, reason: answer.stop_reason };
  },
  async json() {
    const answer = await client.messages.create({
      model, messages, max_tokens: 200, temperature: 0,
      output_config: {
        format: {
          type: "json_schema",
          schema: {
            type: "object", additionalProperties: false, required: ["city", "letters"],
            properties: { city: { enum: ["Paris", "Rome"] }, letters: { type: "integer", maximum: 99, minimum: 0 } },
          },
        },
      },
    });
    return { text: textOf(answer), reason: answer.stop_reason };
  },
};

console.log(JSON.stringify(await steps[step]()));
