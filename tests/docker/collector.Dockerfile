# The official Collector's place, where its image cannot be had: the binary of `make collector`, under the name that the image gives its own.
FROM python:3.13-slim
COPY otelcol-legato /otelcol-contrib
USER 10001:10001
ENTRYPOINT ["/otelcol-contrib"]
CMD ["--config", "/etc/otelcol-contrib/config.yaml"]
