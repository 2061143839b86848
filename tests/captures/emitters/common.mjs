// What the JavaScript emitters share: the scenario, the request, and an OpenTelemetry set-up.
//
// The runner gives the scenario as the first argument, the fake server as OPENAI_BASE_URL, the sink as OTEL_EXPORTER_OTLP_ENDPOINT, and
// the exporter as OTEL_EXPORTER_OTLP_PROTOCOL.

export const SCENARIO = process.argv[2];
export const BREAK_AFTER = 12;
export const MODEL = 'gpt-4o-mini';
// The fake server answers this model with one chunk and keeps no truth of it.
export const WARM_UP = 'warm-up';
export const PROMPT = 'Count.';

// The arguments of `chat.completions.create` for the scenario.
export function chatRequest(model = MODEL) {
  const parameters = { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] };
  const weather = { type: 'function', function: { name: 'weather', description: 'The weather of a city.', parameters } };
  return {
    model,
    messages: [{ role: 'user', content: PROMPT }],
    stream: true,
    stream_options: { include_usage: true },
    ...(SCENARIO === 'tools' ? { tools: [weather] } : {}),
  };
}

// Iterate as the application of the scenario does: 12 items in "break", all otherwise. A cut stream's error ends here.
export async function consume(stream) {
  let index = 0;
  try {
    for await (const _ of stream) {
      index += 1;
      if (SCENARIO === 'break' && index === BREAK_AFTER) return;
    }
  } catch (error) {
    report(error);
  }
}

// Print an expected error (the cut); throw any other.
export function report(error) {
  if (SCENARIO !== 'cut') throw error;
  console.log(`as planned: ${error}`);
}

// An instrumentation that reads a copy of the stream throws where the application cannot catch.
if (SCENARIO === 'cut') process.on('unhandledRejection', report);

// Register a tracer provider with the exporter of OTEL_EXPORTER_OTLP_PROTOCOL.
export async function tracing() {
  const json = process.env.OTEL_EXPORTER_OTLP_PROTOCOL === 'http/json';
  const { NodeTracerProvider, BatchSpanProcessor } = await import('@opentelemetry/sdk-trace-node');
  const { OTLPTraceExporter } = await import(`@opentelemetry/exporter-trace-otlp-${json ? 'http' : 'proto'}`);
  const { resourceFromAttributes } = await import('@opentelemetry/resources');
  const provider = new NodeTracerProvider({
    resource: resourceFromAttributes({ 'service.name': 'capture' }),
    spanProcessors: [new BatchSpanProcessor(new OTLPTraceExporter())],
  });
  provider.register();
  return provider;
}

// A client of openai that has its connection open.
export async function openaiClient(OpenAI) {
  const client = new OpenAI({ maxRetries: 0 });
  for await (const _ of await client.chat.completions.create(chatRequest(WARM_UP)));
  return client;
}
