package hs2test

import (
	"context"
	"fmt"
	"slices"

	"github.com/beltran/gohive/hiveserver"
)

func (s *service) GetResultSetMetadata(ctx context.Context, req *hiveserver.TGetResultSetMetadataReq) (*hiveserver.TGetResultSetMetadataResp, error) {
	return serve(ctx, s, "GetResultSetMetadata", func() (*hiveserver.TGetResultSetMetadataResp, error) {
		o, bad := s.operation(req.GetOperationHandle())
		if bad != nil {
			return &hiveserver.TGetResultSetMetadataResp{Status: bad}, nil
		}
		schema := &hiveserver.TTableSchema{Columns: []*hiveserver.TColumnDesc{}}
		for i, c := range o.run.Columns {
			schema.Columns = append(schema.Columns, &hiveserver.TColumnDesc{ColumnName: c.Name, Position: int32(i + 1),
				TypeDesc: &hiveserver.TTypeDesc{Types: []*hiveserver.TTypeEntry{{PrimitiveEntry: &hiveserver.TPrimitiveTypeEntry{Type: typeOf(c.Type)}}}}})
		}
		return &hiveserver.TGetResultSetMetadataResp{Status: success(), Schema: schema}, nil
	})
}

func typeOf(name string) hiveserver.TTypeId {
	for id, n := range hiveserver.TYPE_NAMES {
		if n == name {
			return id
		}
	}
	return hiveserver.TTypeId_STRING_TYPE
}

func (s *service) FetchResults(ctx context.Context, req *hiveserver.TFetchResultsReq) (*hiveserver.TFetchResultsResp, error) {
	return serve(ctx, s, "FetchResults", func() (*hiveserver.TFetchResultsResp, error) {
		o, bad := s.operation(req.GetOperationHandle())
		if bad != nil {
			return &hiveserver.TFetchResultsResp{Status: bad}, nil
		}
		rows, types, at := o.run.Rows, make([]string, len(o.run.Columns)), &o.fetched
		for i, c := range o.run.Columns {
			types[i] = c.Type
		}
		if req.GetFetchType() == 1 {
			rows, types, at = nil, []string{"STRING"}, &o.logged
			for _, l := range o.run.Logs {
				rows = append(rows, []any{l})
			}
		}
		if req.GetOrientation() == hiveserver.TFetchOrientation_FETCH_FIRST {
			*at = 0
		}
		end := min(len(rows), *at+int(req.GetMaxRows()))
		page := rows[*at:end]
		*at = end
		set := &hiveserver.TRowSet{Rows: []*hiveserver.TRow{}}
		for i, t := range types {
			c, err := columnOf(t, page, i)
			if err != nil {
				return nil, err
			}
			set.Columns = append(set.Columns, c)
		}
		more := false // as Hive says it, whatever follows
		return &hiveserver.TFetchResultsResp{Status: success(), HasMoreRows: &more, Results: set}, nil
	})
}

// columnOf turns one value of every row into a column.
func columnOf(kind string, rows [][]any, at int) (*hiveserver.TColumn, error) {
	nulls := make([]byte, (len(rows)+7)/8)
	switch kind {
	case "BOOLEAN":
		v, err := values[bool](rows, at, nulls)
		return &hiveserver.TColumn{BoolVal: &hiveserver.TBoolColumn{Values: v, Nulls: nulls}}, err
	case "TINYINT":
		v, err := values[int8](rows, at, nulls)
		return &hiveserver.TColumn{ByteVal: &hiveserver.TByteColumn{Values: v, Nulls: nulls}}, err
	case "SMALLINT":
		v, err := values[int16](rows, at, nulls)
		return &hiveserver.TColumn{I16Val: &hiveserver.TI16Column{Values: v, Nulls: nulls}}, err
	case "INT":
		v, err := values[int32](rows, at, nulls)
		return &hiveserver.TColumn{I32Val: &hiveserver.TI32Column{Values: v, Nulls: nulls}}, err
	case "BIGINT":
		v, err := values[int64](rows, at, nulls)
		return &hiveserver.TColumn{I64Val: &hiveserver.TI64Column{Values: v, Nulls: nulls}}, err
	case "FLOAT", "DOUBLE":
		v, err := values[float64](rows, at, nulls)
		return &hiveserver.TColumn{DoubleVal: &hiveserver.TDoubleColumn{Values: v, Nulls: nulls}}, err
	case "BINARY":
		v, err := values[[]byte](rows, at, nulls)
		return &hiveserver.TColumn{BinaryVal: &hiveserver.TBinaryColumn{Values: v, Nulls: nulls}}, err
	}
	v, err := values[string](rows, at, nulls)
	return &hiveserver.TColumn{StringVal: &hiveserver.TStringColumn{Values: v, Nulls: nulls}}, err
}

func values[T any](rows [][]any, at int, nulls []byte) ([]T, error) {
	out := make([]T, 0, len(rows))
	for i, r := range rows {
		v, ok := r[at].(T)
		if !ok {
			if r[at] != nil {
				return nil, fmt.Errorf("row %d, column %d: a %T", i+1, at+1, r[at])
			}
			nulls[i/8] |= 1 << (i % 8)
		}
		out = append(out, v)
	}
	return slices.Clip(out), nil
}
