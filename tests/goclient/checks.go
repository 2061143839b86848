package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/ext"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
)

// concurrent is the number of simultaneous queries, about as many as a dashboard sends.
const concurrent = 20

type check struct {
	name string
	run  func(ctx context.Context, conn driver.Conn, options *clickhouse.Options) (answer, error)
}

var checks = []check{
	{"server", server},
	{"database_sql", databaseSQL},
	{"numbers", query("SELECT 255::UInt8 AS u8, 65535::UInt16 AS u16, 4294967295::UInt32 AS u32, 18446744073709551615::UInt64 AS u64, " +
		"-9223372036854775808::Int64 AS i64, -7::Int8 AS i8, 1.5::Float32 AS f32, 0.1::Float64 AS f64, nan AS no_number, -inf AS endless, " +
		"true AS yes, '123.4500'::Decimal(18, 4) AS money")},
	{"texts", query("SELECT 'ä 😀' AS text, 'ab'::FixedString(4) AS fixed, unhex('00ff80') AS bytes, 'lc'::LowCardinality(String) AS word, " +
		"'b'::Enum8('a' = 1, 'b' = 2) AS choice, toUUID('61f0c404-5cb3-11e7-907b-a6006ad3dba0') AS id")},
	{"times", query("SELECT '2026-01-02'::Date AS day, '2026-01-02 03:04:05'::DateTime('UTC') AS second, " +
		"toDateTime64('2026-01-02 03:04:05.678', 3, 'UTC') AS milli, toDateTime64('2026-01-02 03:04:05.123456789', 9, 'UTC') AS nano, " +
		"'2026-01-02 03:04:05'::DateTime('Asia/Tokyo') AS there")},
	{"nullable", query("SELECT NULL::Nullable(UInt32) AS none, 7::Nullable(UInt32) AS some, NULL::Nullable(Float64) AS unknown, " +
		"NULL::LowCardinality(Nullable(String)) AS word, toDateTime64('2026-01-02 03:04:05', 9, 'UTC')::Nullable(DateTime64(9, 'UTC')) AS time")},
	{"containers", query("SELECT [1, 2]::Array(UInt32) AS some, []::Array(UInt64) AS empty, [1, 255]::Array(UInt8) AS small, " +
		"['a', 'b', 'a']::Array(LowCardinality(String)) AS words, map('x', -1)::Map(LowCardinality(String), Int64) AS counts, " +
		"map('k', 'v')::Map(LowCardinality(String), String) AS texts, ('a', 1::UInt8) AS pair")},
	{"streams", query("SELECT * FROM streams ORDER BY start_time, span_id LIMIT 5")},
	{"samples", query("SELECT * FROM node_samples ORDER BY recorded_at LIMIT 5")},
	{"tables", tables},
	{"empty", query("SELECT model, gap_max_us FROM streams WHERE 0")},
	{"big", big},
	{"syntax", query("SELECT FROM WHERE")},
	{"no_table", query("SELECT * FROM nowhere")},
	{"no_column", query("SELECT nowhere")},
	{"insert", exec("INSERT INTO schema_migrations (number, name, sha256) VALUES (9, 'x', 'y')")},
	{"insert_batch", insertBatch},
	{"create", exec("CREATE TABLE t (x UInt8) ENGINE = Memory")},
	{"set", exec("SET readonly = 0")},
	{"several", query("SELECT 1; SELECT 2")},
	{"url", query("SELECT * FROM url('http://127.0.0.1:1/', 'CSV', 'x String')")},
	{"file", query("SELECT * FROM file('/etc/hostname', 'RawBLOB')")},
	{"outfile", query("SELECT 1 INTO OUTFILE '/tmp/legato-goclient'")},
	{"external", external},
	{"rows_limit", query("SELECT number FROM numbers(200000)")},
	{"time_limit", query("SELECT max(sipHash64(number)) FROM numbers(1000000000000)")},
	{"after_errors", query("SELECT 'clean' AS word")},
	{"bound", query("SELECT {text:String} AS text, {n:UInt64} AS n, {words:Array(String)} AS words, {time:DateTime64(3, 'UTC')} AS time",
		clickhouse.Named("text", "it's ä"), clickhouse.Named("n", uint64(1)<<63), clickhouse.Named("words", []string{"a", "b'c"}),
		clickhouse.DateNamed("time", time.Date(2026, 1, 2, 3, 4, 5, 678_000_000, time.UTC), clickhouse.MilliSeconds))},
	{"written_in", query("SELECT ? AS text, ? AS n", `it's \ ä`, uint64(1)<<63)},
	{"concurrent", concurrently},
}

type step = func(context.Context, driver.Conn, *clickhouse.Options) (answer, error)

func query(sql string, args ...any) step {
	return func(ctx context.Context, conn driver.Conn, _ *clickhouse.Options) (answer, error) {
		rows, err := conn.Query(ctx, sql, args...)
		if err != nil {
			return answer{}, err
		}
		return table(rows)
	}
}

func exec(sql string) step {
	return func(ctx context.Context, conn driver.Conn, _ *clickhouse.Options) (answer, error) {
		return answer{}, conn.Exec(ctx, sql)
	}
}

func server(ctx context.Context, conn driver.Conn, _ *clickhouse.Options) (answer, error) {
	if err := conn.Ping(ctx); err != nil {
		return answer{}, err
	}
	version, err := conn.ServerVersion()
	if err != nil {
		return answer{}, err
	}
	facts := map[string]any{"name": version.DisplayName, "version": version.Version.String(), "revision": version.Revision}
	facts["timezone"] = version.Timezone.String()
	return answer{Facts: facts}, nil
}

// databaseSQL queries through database/sql, as Grafana's data source does.
func databaseSQL(ctx context.Context, _ driver.Conn, options *clickhouse.Options) (answer, error) {
	db := clickhouse.OpenDB(options)
	defer db.Close()
	if err := db.PingContext(ctx); err != nil {
		return answer{}, err
	}
	var streams uint64
	err := db.QueryRowContext(ctx, "SELECT count() FROM streams").Scan(&streams)
	return answer{Facts: map[string]any{"streams": streams}}, err
}

// tables reads up to 5 rows of every table, with all columns.
func tables(ctx context.Context, conn driver.Conn, _ *clickhouse.Options) (answer, error) {
	names, err := query("SHOW TABLES")(ctx, conn, nil)
	if err != nil {
		return names, err
	}
	result := answer{Facts: map[string]any{}}
	for _, row := range names.Rows {
		read, err := query(fmt.Sprintf("SELECT * FROM %s LIMIT 5", row[0]))(ctx, conn, nil)
		if err != nil {
			return result, fmt.Errorf("%s: %w", row[0], err)
		}
		result.Facts[fmt.Sprint(row[0])] = len(read.Rows)
	}
	return result, nil
}

func big(ctx context.Context, conn driver.Conn, _ *clickhouse.Options) (answer, error) {
	rows, err := conn.Query(ctx, "SELECT number, toString(number) AS text, toLowCardinality(toString(number % 7)) AS word FROM numbers(100000)")
	if err != nil {
		return answer{}, err
	}
	defer rows.Close()
	var count, sum, value, letters uint64
	for rows.Next() {
		var text, word string
		if err := rows.Scan(&value, &text, &word); err != nil {
			return answer{}, err
		}
		if text != fmt.Sprint(value) || word != fmt.Sprint(value%7) {
			return answer{}, fmt.Errorf("row %d holds %s and %s", value, text, word)
		}
		count, sum, letters = count+1, sum+value, letters+uint64(len(text))
	}
	return answer{Facts: map[string]any{"rows": count, "sum": sum, "letters": letters}}, rows.Err()
}

func insertBatch(ctx context.Context, conn driver.Conn, _ *clickhouse.Options) (answer, error) {
	batch, err := conn.PrepareBatch(ctx, "INSERT INTO schema_migrations (number, name, sha256)")
	if err != nil {
		return answer{}, err
	}
	if err := batch.Append(uint32(9), "x", "y"); err != nil {
		return answer{}, fmt.Errorf("append: %w", err)
	}
	return answer{}, batch.Send()
}

// external sends an external table together with the query.
func external(ctx context.Context, conn driver.Conn, _ *clickhouse.Options) (answer, error) {
	sent, err := ext.NewTable("sent", ext.Column("x", "UInt8"))
	if err != nil {
		return answer{}, err
	}
	if err := sent.Append(uint8(1)); err != nil {
		return answer{}, err
	}
	return query("SELECT * FROM sent")(clickhouse.Context(ctx, clickhouse.WithExternalTable(sent)), conn, nil)
}

// concurrently sends different queries at once, counts the rejected ones by HTTP status, and checks the results of the others.
func concurrently(ctx context.Context, conn driver.Conn, _ *clickhouse.Options) (answer, error) {
	var (
		group   sync.WaitGroup
		guarded sync.Mutex
		right   int
		first   error
		refused = map[int]int{}
	)
	for n := range uint64(concurrent) {
		group.Go(func() {
			var echoed, sum uint64
			err := conn.QueryRow(ctx, fmt.Sprintf("SELECT toUInt64(%d), sum(number) FROM numbers(%d)", n, n+1000)).Scan(&echoed, &sum)
			guarded.Lock()
			defer guarded.Unlock()
			switch {
			case err != nil:
				refused[number(status, err)]++
				first = err
			case echoed == n && sum == (n+1000)*(n+999)/2:
				right++
			}
		})
	}
	group.Wait()
	return answer{Facts: map[string]any{"right": right, "refused": refused}}, first
}
