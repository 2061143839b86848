// Command otlpclient sends one streamed response and one histogram with OpenTelemetry's SDK for Go.
//
// The arguments are the times of the chunks in ms after the start. The exporters read their settings from OpenTelemetry's own environment
// variables. An export that fails, or that the receiver takes in part only, ends the program with status 1.
package main

import (
	"context"
	"log"
	"os"
	"strconv"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func exporters(ctx context.Context) (sdktrace.SpanExporter, sdkmetric.Exporter) {
	if os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL") == "grpc" {
		spans, err := otlptracegrpc.New(ctx)
		check(err)
		metrics, err := otlpmetricgrpc.New(ctx)
		check(err)
		return spans, metrics
	}
	spans, err := otlptracehttp.New(ctx)
	check(err)
	metrics, err := otlpmetrichttp.New(ctx)
	check(err)
	return spans, metrics
}

// sendStream records a response that began a minute ago, with an event for each chunk.
func sendStream(ctx context.Context, tracer trace.Tracer, chunks []time.Duration) {
	began := time.Now().Add(-time.Minute)
	_, span := tracer.Start(ctx, "chat model-a", trace.WithTimestamp(began), trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
		attribute.String("gen_ai.operation.name", "chat"),
		attribute.String("gen_ai.request.model", "model-a"),
		attribute.StringSlice("gen_ai.response.finish_reasons", []string{"stop"}),
		attribute.Int("gen_ai.usage.output_tokens", len(chunks)),
	))
	for _, after := range chunks {
		span.AddEvent("chunk", trace.WithTimestamp(began.Add(after)))
	}
	span.End(trace.WithTimestamp(began.Add(chunks[len(chunks)-1])))
}

func main() {
	ctx := context.Background()
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Fatal(err) }))
	var chunks []time.Duration
	for _, text := range os.Args[1:] {
		after, err := strconv.Atoi(text)
		check(err)
		chunks = append(chunks, time.Duration(after)*time.Millisecond)
	}
	spans, metrics := exporters(ctx)
	tracers := sdktrace.NewTracerProvider(sdktrace.WithBatcher(spans))
	sendStream(ctx, tracers.Tracer("my.application"), chunks)
	check(tracers.Shutdown(ctx))

	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewPeriodicReader(metrics)))
	latency, err := meters.Meter("my.application").Float64Histogram("app.latency", metric.WithExplicitBucketBoundaries(0.1, 1))
	check(err)
	for _, seconds := range []float64{0.05, 0.5, 0.5, 5} {
		latency.Record(ctx, seconds)
	}
	check(meters.Shutdown(ctx))
}
