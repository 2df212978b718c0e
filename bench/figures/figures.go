// Package figures is how a benchmark tells its results: a table for people, a file
// for programs, and an error when a bar is missed. It must not know what is
// measured.
package figures

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
)

// Row is one line of the result. Ok is nil where there is no bar.
type Row struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	Floor float64 `json:"floor"`
	Ratio float64 `json:"ratio"`
	Bar   string  `json:"bar"`
	Ok    *bool   `json:"ok"`
}

// Report prints rows and writes them to the file out. A missed bar is an error,
// after that.
func Report(rows []Row, out string) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "work\tvalue\tunit\tfloor\tratio\tbar\tok")
	failed := 0
	for _, r := range rows {
		ok := ""
		if r.Ok != nil {
			ok = map[bool]string{true: "yes", false: "NO"}[*r.Ok]
			if !*r.Ok {
				failed++
			}
		}
		fmt.Fprintf(w, "%s\t%.1f\t%s\t%.1f\t%.2f\t%s\t%s\n", r.Name, r.Value, r.Unit, r.Floor, r.Ratio, r.Bar, ok)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	data, err := json.MarshalIndent(rows, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(out, append(data, '\n'), 0o644); err != nil {
		return err
	}
	if failed > 0 {
		return fmt.Errorf("%d bars are missed", failed)
	}
	return nil
}

// Judged is the Ok of a row that has a bar.
func Judged(ok bool) *bool { return &ok }

// Median is 0 for no values.
func Median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	if len(v) == 0 {
		return 0
	}
	return v[len(v)/2]
}
