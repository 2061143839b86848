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

// table reads a whole result into an answer, each value as the driver's own Go type, made plain.
func table(rows driver.Rows) (answer, error) {
	defer rows.Close()
	said := answer{Columns: rows.Columns()}
	for _, each := range rows.ColumnTypes() {
		said.Types = append(said.Types, each.DatabaseTypeName())
	}
	for rows.Next() {
		places := make([]any, len(said.Columns))
		for i, each := range rows.ColumnTypes() {
			places[i] = reflect.New(each.ScanType()).Interface()
		}
		if err := rows.Scan(places...); err != nil {
			return said, err
		}
		row := make([]any, len(places))
		for i, place := range places {
			row[i] = plain(reflect.ValueOf(place).Elem())
		}
		said.Rows = append(said.Rows, row)
	}
	return said, rows.Err()
}

// plain is a value as JSON can carry it: floats that JSON lacks as text, times in UTC, bytes that are no text in hexadecimal.
func plain(value reflect.Value) any {
	if value.Kind() == reflect.Pointer || value.Kind() == reflect.Interface {
		if value.IsNil() {
			return nil
		}
		if _, named := value.Interface().(fmt.Stringer); !named {
			return plain(value.Elem())
		}
	}
	switch held := value.Interface().(type) {
	case time.Time:
		return held.UTC().Format(time.RFC3339Nano)
	case *time.Time:
		return held.UTC().Format(time.RFC3339Nano)
	case fmt.Stringer:
		return held.String()
	}
	switch value.Kind() {
	case reflect.Float32, reflect.Float64:
		held := value.Float()
		if math.IsNaN(held) || math.IsInf(held, 0) {
			return fmt.Sprint(held)
		}
		return held
	case reflect.String:
		if held := value.String(); !utf8.ValidString(held) {
			return "hex:" + hex.EncodeToString([]byte(held))
		}
	case reflect.Slice, reflect.Array:
		list := make([]any, value.Len())
		for i := range list {
			list[i] = plain(value.Index(i))
		}
		return list
	case reflect.Map:
		held := make(map[string]any, value.Len())
		for _, key := range value.MapKeys() {
			held[fmt.Sprint(key.Interface())] = plain(value.MapIndex(key))
		}
		return held
	}
	return value.Interface()
}
