"""OpenTelemetry (extra `otel`): traces of requests, and metrics, sent by OTLP from a thread."""
