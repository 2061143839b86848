// Vercel's AI SDK: `streamText` with its telemetry. AI_TELEMETRY selects who writes the spans: "otel" and "legacy" are the two classes of
// @ai-sdk/otel (AI SDK 7), "experimental" is the option of older versions.

import { createOpenAI } from '@ai-sdk/openai';
import * as ai from 'ai';
import { BREAK_AFTER, MODEL, PROMPT, SCENARIO, WARM_UP, report, tracing } from './common.mjs';

const { jsonSchema, streamText, tool } = ai;
const provider = await tracing();
const openai = createOpenAI({ baseURL: process.env.OPENAI_BASE_URL });
for await (const _ of streamText({ model: openai.chat(WARM_UP), prompt: PROMPT }).textStream);

let options = {};
if (process.env.AI_TELEMETRY === 'experimental') {
  options = { experimental_telemetry: { isEnabled: true, functionId: 'count' } };
} else {
  const { OpenTelemetry, LegacyOpenTelemetry } = await import('@ai-sdk/otel');
  ai.registerTelemetry(process.env.AI_TELEMETRY === 'legacy' ? new LegacyOpenTelemetry() : new OpenTelemetry());
}
if (SCENARIO === 'tools') {
  const inputSchema = jsonSchema({ type: 'object', properties: { city: { type: 'string' } }, required: ['city'] });
  options.tools = { weather: tool({ description: 'The weather of a city.', inputSchema, execute: async () => 'sun' }) };
  options.stopWhen = ai.stepCountIs(2);
}

const abort = new AbortController();
const result = streamText({
  model: openai.chat(MODEL),
  prompt: PROMPT,
  maxRetries: 0,
  abortSignal: abort.signal,
  onError: () => {},
  ...options,
});
let seen = 0;
try {
  for await (const _ of result.textStream) {
    seen += 1;
    // A pull that stops closes nothing in the AI SDK: its users abort by the signal.
    if (SCENARIO === 'break' && seen === BREAK_AFTER) abort.abort();
  }
} catch (error) {
  if (SCENARIO !== 'break') report(error);
}
await new Promise((resolve) => setTimeout(resolve, 500));
await provider.shutdown();
