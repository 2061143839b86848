package main

import (
	"encoding/hex"
	"fmt"
	"math"
	"reflect"
	"time"
	"unicode/utf8"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
)

// table reads all rows of a result into an answer. Values are scanned into the driver's own Go types and converted by plain.
func table(rows driver.Rows) (answer, error) {
	defer rows.Close()
	result := answer{Columns: rows.Columns()}
	for _, each := range rows.ColumnTypes() {
		result.Types = append(result.Types, each.DatabaseTypeName())
	}
	for rows.Next() {
		targets := make([]any, len(result.Columns))
		for i, each := range rows.ColumnTypes() {
			targets[i] = reflect.New(each.ScanType()).Interface()
		}
		if err := rows.Scan(targets...); err != nil {
			return result, err
		}
		row := make([]any, len(targets))
		for i, target := range targets {
			row[i] = plain(reflect.ValueOf(target).Elem())
		}
		result.Rows = append(result.Rows, row)
	}
	return result, rows.Err()
}

// plain converts a value to what JSON can carry: NaN and infinities as text, times in UTC, bytes that are not UTF-8 in hexadecimal.
func plain(value reflect.Value) any {
	if value.Kind() == reflect.Pointer || value.Kind() == reflect.Interface {
		if value.IsNil() {
			return nil
		}
		if _, named := value.Interface().(fmt.Stringer); !named {
			return plain(value.Elem())
		}
	}
	switch content := value.Interface().(type) {
	case time.Time:
		return content.UTC().Format(time.RFC3339Nano)
	case *time.Time:
		return content.UTC().Format(time.RFC3339Nano)
	case fmt.Stringer:
		return content.String()
	}
	switch value.Kind() {
	case reflect.Float32, reflect.Float64:
		content := value.Float()
		if math.IsNaN(content) || math.IsInf(content, 0) {
			return fmt.Sprint(content)
		}
		return content
	case reflect.String:
		if content := value.String(); !utf8.ValidString(content) {
			return "hex:" + hex.EncodeToString([]byte(content))
		}
	case reflect.Slice, reflect.Array:
		list := make([]any, value.Len())
		for i := range list {
			list[i] = plain(value.Index(i))
		}
		return list
	case reflect.Map:
		content := make(map[string]any, value.Len())
		for _, key := range value.MapKeys() {
			content[fmt.Sprint(key.Interface())] = plain(value.MapIndex(key))
		}
		return content
	}
	return value.Interface()
}
