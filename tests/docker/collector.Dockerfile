# Replaces the official Collector image where it cannot be pulled: the binary of `make collector`, under the file name of that image.
FROM python:3.13-slim
COPY otelcol-legato /otelcol-contrib
USER 10001:10001
ENTRYPOINT ["/otelcol-contrib"]
CMD ["--config", "/etc/otelcol-contrib/config.yaml"]
