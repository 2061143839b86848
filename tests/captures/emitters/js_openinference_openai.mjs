// OpenInference's instrumentation of openai for JavaScript (Arize Phoenix).

import { OpenAIInstrumentation } from '@arizeai/openinference-instrumentation-openai';
import OpenAI from 'openai';
import { chatRequest, consume, openaiClient, tracing } from './common.mjs';

const provider = await tracing();
const instrumentation = new OpenAIInstrumentation();
instrumentation.setTracerProvider(provider);
const client = await openaiClient(OpenAI);
instrumentation.manuallyInstrument(OpenAI);
await consume(await client.chat.completions.create(chatRequest()));
// The instrumentation reads a copy of the stream, to its end also if the application has stopped.
await new Promise((resolve) => setTimeout(resolve, 2500));
await provider.shutdown();
