// Steps of the OpenAI SDK: node openai.mjs STEP BASE_URL; prints one JSON object.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(`${process.env.CLIENT_FOLDER}/package.json`);
const { default: OpenAI } = await import(pathToFileURL(require.resolve("openai")).href);

const [step, baseURL] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "local", maxRetries: step === "busy" ? 5 : 0 });
const model = "local-model";
const messages = [{ role: "user", content: "What is the capital of France?" }];
const weather = {
  name: "get_weather",
  description: "Get the weather of a city.",
  parameters: {
    type: "object",
    properties: { city: { type: "string" } },
    required: ["city"],
    additionalProperties: false,
  },
};

const steps = {
  async models() {
    const ids = [];
    for await (const found of client.models.list()) ids.push(found.id);
    return { ids, one: (await client.models.retrieve(ids[0])).id };
  },
  async chat() {
    const answer = await client.chat.completions.create({ model, messages, temperature: 0, max_tokens: 30 });
    return { text: answer.choices[0].message.content, reason: answer.choices[0].finish_reason, usage: answer.usage };
  },
  async stream() {
    const stream = await client.chat.completions.create({
      model, messages, temperature: 0, max_tokens: 30, stream: true, stream_options: { include_usage: true },
    });
    let text = "", reason = "", chunks = 0, usage = null;
    for await (const chunk of stream) {
      chunks += 1;
      text += chunk.choices[0]?.delta?.content ?? "";
      reason = chunk.choices[0]?.finish_reason ?? reason;
      usage = chunk.usage ?? usage;
    }
    return { text, reason, chunks, usage };
  },
  async stop() {
    const answer = await client.chat.completions.create({ model, messages, temperature: 0, stop: [" Paris"] });
    return { text: answer.choices[0].message.content, reason: answer.choices[0].finish_reason };
  },
  async overflow() {
    const content = "one two three ".repeat(20000);
    try {
      await client.chat.completions.create({ model, messages: [{ role: "user", content }] });
    } catch (error) {
      return { status: error.status, code: error.code, message: error.message };
    }
    return {};
  },
  async busy() {
    const answer = await client.chat.completions.create({ model, messages });
    return { text: answer.choices[0].message.content };
  },
  async abort() {
    const stream = await client.chat.completions.create({ model, messages, stream: true });
    for await (const _ of stream) break;
    return { left: true };
  },
  async tools() {
    const cities = [];
    const run = client.chat.completions.runTools({
      model,
      messages,
      stream: process.argv[4] === "stream",
      tools: [{
        type: "function",
        function: { ...weather, parse: JSON.parse, function: ({ city }) => { cities.push(city); return "sunny"; } },
      }],
    });
    return { text: await run.finalContent(), cities };
  },
  async forced() {
    const answer = await client.chat.completions.create({
      model, messages, temperature: 0, max_tokens: 200,
      tools: [{ type: "function", function: weather }],
      tool_choice: { type: "function", function: { name: "get_weather" } },
    });
    const call = answer.choices[0].message.tool_calls?.[0];
    return { name: call?.function.name, arguments: call?.function.arguments, reason: answer.choices[0].finish_reason };
  },
  async json() {
    const answer = await client.chat.completions.create({
      model, messages, temperature: 0, max_tokens: 200,
      response_format: {
        type: "json_schema",
        json_schema: {
          name: "place", strict: true,
          schema: {
            type: "object", additionalProperties: false, required: ["city", "letters"],
            properties: { city: { enum: ["Paris", "Rome"] }, letters: { type: "integer", maximum: 99, minimum: 0 } },
          },
        },
      },
    });
    return { text: answer.choices[0].message.content, reason: answer.choices[0].finish_reason };
  },
};

console.log(JSON.stringify(await steps[step]()));
