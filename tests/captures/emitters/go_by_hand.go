// Spans by hand with OpenTelemetry's SDK for Go: an event for each chunk. OTEL_EXPORTER_OTLP_PROTOCOL selects the exporter.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"os"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

const (
	model      = "gpt-4o-mini"
	breakAfter = 12
	request    = `{"model":"` + model + `","messages":[{"role":"user","content":"Count."}],"stream":true,"stream_options":{"include_usage":true}}`
)

type chunk struct {
	ID      string
	Model   string
	Choices []struct {
		FinishReason *string `json:"finish_reason"`
	}
	Usage *struct {
		PromptTokens     int `json:"prompt_tokens"`
		CompletionTokens int `json:"completion_tokens"`
	}
}

func exporter(ctx context.Context) (sdk.SpanExporter, error) {
	if os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL") == "grpc" {
		return otlptracegrpc.New(ctx)
	}
	return otlptracehttp.New(ctx)
}

func note(span trace.Span, data string) error {
	var each chunk
	if err := json.Unmarshal([]byte(data), &each); err != nil {
		return err
	}
	span.AddEvent("chunk")
	span.SetAttributes(attribute.String("gen_ai.response.id", each.ID), attribute.String("gen_ai.response.model", each.Model))
	if len(each.Choices) > 0 && each.Choices[0].FinishReason != nil {
		span.SetAttributes(attribute.StringSlice("gen_ai.response.finish_reasons", []string{*each.Choices[0].FinishReason}))
	}
	if each.Usage != nil {
		span.SetAttributes(
			attribute.Int("gen_ai.usage.input_tokens", each.Usage.PromptTokens),
			attribute.Int("gen_ai.usage.output_tokens", each.Usage.CompletionTokens),
		)
	}
	return nil
}

func stream(ctx context.Context, tracer trace.Tracer, scenario string) error {
	ctx, span := tracer.Start(ctx, "chat "+model, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
		attribute.String("gen_ai.operation.name", "chat"),
		attribute.String("gen_ai.provider.name", "openai"),
		attribute.String("gen_ai.request.model", model),
		attribute.Bool("gen_ai.request.stream", true),
	))
	defer span.End()
	post, err := http.NewRequestWithContext(ctx, "POST", os.Getenv("OPENAI_BASE_URL")+"/chat/completions", strings.NewReader(request))
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(post)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	for index := 0; lines.Scan(); {
		data, found := strings.CutPrefix(lines.Text(), "data: {")
		if !found {
			continue
		}
		if err := note(span, "{"+data); err != nil {
			return err
		}
		if index++; scenario == "break" && index == breakAfter {
			return nil
		}
	}
	if err := lines.Err(); err != nil {
		span.RecordError(err)
		span.SetStatus(codes.Error, err.Error())
		return err
	}
	return nil
}

func main() {
	ctx := context.Background()
	out, err := exporter(ctx)
	if err != nil {
		log.Fatal(err)
	}
	attributes := resource.NewSchemaless(attribute.String("service.name", "capture"))
	provider := sdk.NewTracerProvider(sdk.WithBatcher(out), sdk.WithResource(attributes))
	if err := stream(ctx, provider.Tracer("my.application", trace.WithInstrumentationVersion("1.0")), os.Args[1]); err != nil {
		if os.Args[1] != "cut" {
			log.Fatal(err)
		}
		fmt.Println("as planned:", err)
	}
	if err := provider.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
}
