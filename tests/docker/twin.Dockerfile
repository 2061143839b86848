# Replaces the ClickHouse image where it cannot be pulled: tests/helpers/servers/twin.py over chDB.
FROM python:3.13-slim
WORKDIR /src
COPY requirements-demo.txt ./
RUN grep == requirements-demo.txt > versions.txt && python3 -m venv /opt/twin \
    && /opt/twin/bin/pip install --no-cache-dir --disable-pip-version-check -c versions.txt "clickhouse-connect[chdb]" fastapi uvicorn \
    && mkdir -p /var/lib/clickhouse && chown 101:101 /var/lib/clickhouse
COPY tests/helpers/servers/twin.py /opt/twin/twin.py
ENV PATH=/opt/twin/bin:$PATH TWIN_HOST=0.0.0.0
USER 101:101
CMD ["python", "/opt/twin/twin.py", "/var/lib/clickhouse/store", "8123"]
