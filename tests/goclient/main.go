// Command goclient queries the read endpoint as Grafana's ClickHouse data source does: with clickhouse-go over HTTP, in the Native format.
//
// It runs a fixed list of queries (checks.go) and prints one line of JSON for each result or error. It does not judge the results: the
// Python test that runs it does. User and password come from LEGATO_READ_USER and LEGATO_READ_PASSWORD, as for `legato`.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
)

// answer is one line of output. Code is ClickHouse's error code and Status the HTTP status, both parsed from the driver's error text.
type answer struct {
	Check   string         `json:"check"`
	Columns []string       `json:"columns,omitempty"`
	Types   []string       `json:"types,omitempty"`
	Rows    [][]any        `json:"rows,omitempty"`
	Facts   map[string]any `json:"facts,omitempty"`
	Error   string         `json:"error,omitempty"`
	Code    int            `json:"code,omitempty"`
	Status  int            `json:"status,omitempty"`
}

var methods = map[string]clickhouse.CompressionMethod{
	"none": clickhouse.CompressionNone,
	"gzip": clickhouse.CompressionGZIP,
	"lz4":  clickhouse.CompressionLZ4,
	"zstd": clickhouse.CompressionZSTD,
}

func main() {
	addr := flag.String("addr", "127.0.0.1:8123", "host:port of the read endpoint")
	compression := flag.String("compression", "none", "none, gzip, lz4 or zstd")
	ask := flag.Bool("ask", false, "also send enable_http_compression=1; ClickHouse compresses with gzip only with this setting")
	only := flag.String("only", "", "comma-separated names of the checks to run; all if empty")
	flag.Parse()
	method, known := methods[*compression]
	if !known || flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "goclient: -compression is %q, and %d words follow the flags\n", *compression, flag.NArg())
		os.Exit(2)
	}
	options := optionsOf(*addr, method, *ask)
	conn, err := clickhouse.Open(options)
	if err != nil {
		fmt.Fprintln(os.Stderr, "goclient:", err)
		os.Exit(2)
	}
	defer conn.Close()
	out := json.NewEncoder(os.Stdout)
	for _, each := range checks {
		if *only != "" && !strings.Contains(","+*only+",", ","+each.name+",") {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		result, err := each.run(ctx, conn, options)
		cancel()
		result.Check = each.name
		if err != nil {
			result.Error, result.Code, result.Status = err.Error(), number(code, err), number(status, err)
		}
		if err := out.Encode(result); err != nil {
			fmt.Fprintf(os.Stderr, "goclient: %s cannot be printed: %v\n", each.name, err)
			os.Exit(1)
		}
	}
}

func optionsOf(addr string, method clickhouse.CompressionMethod, ask bool) *clickhouse.Options {
	options := &clickhouse.Options{
		Protocol:     clickhouse.HTTP,
		Addr:         []string{addr},
		Auth:         clickhouse.Auth{Database: "default", Username: os.Getenv("LEGATO_READ_USER"), Password: os.Getenv("LEGATO_READ_PASSWORD")},
		Compression:  &clickhouse.Compression{Method: method, Level: 5},
		Settings:     clickhouse.Settings{},
		MaxOpenConns: concurrent,
		MaxIdleConns: concurrent,
	}
	if ask {
		options.Settings["enable_http_compression"] = 1
	}
	return options
}

var (
	code   = regexp.MustCompile(`Code: (\d+)`)
	status = regexp.MustCompile(`\[HTTP (\d+)\]`)
)

func number(pattern *regexp.Regexp, err error) int {
	found := pattern.FindStringSubmatch(err.Error())
	if found == nil {
		return 0
	}
	value, _ := strconv.Atoi(found[1])
	return value
}
