// Package figures is what benchmarks share: how work is run and weighed against its
// floor, and how results are told, in a table for people, a file
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

// Row is one line of the result. Ratio is engine to floor, where more is better
// and where less is; Floor is 0 where there is none, Ok nil where there is no bar.
type Row struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	Floor float64 `json:"floor"`
	Ratio float64 `json:"ratio"`
	Bar   string  `json:"bar"`
	Ok    *bool   `json:"ok"`
}

// Report is Show for benchmarks whose bars must be met: a missed one is an error,
// after that.
func Report(rows []Row, out string) error {
	if err := Show(rows, out); err != nil {
		return err
	}
	failed := 0
	for _, r := range rows {
		if r.Ok != nil && !*r.Ok {
			failed++
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d bars are missed", failed)
	}
	return nil
}

// Show prints rows and writes them to the file out.
func Show(rows []Row, out string) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "WORK\tVALUE\tUNIT\tFLOOR\tRATIO\tBAR\tOK")
	for _, r := range rows {
		ok, floor, ratio := "-", "-", "-"
		if r.Ok != nil {
			ok = map[bool]string{true: "yes", false: "NO"}[*r.Ok]
		}
		if r.Floor != 0 {
			floor, ratio = number(r.Floor), fmt.Sprintf("%.2f", r.Ratio)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Name, number(r.Value), r.Unit, floor, ratio, r.Bar, ok)
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
	return os.WriteFile(out, append(data, '\n'), 0o644)
}

func number(v float64) string {
	if v >= 100 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
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

// Pair runs floor and engine in turn, so many rounds, and returns their medians
// and the median of the ratios engine/floor.
func Pair(rounds int, floor, engine func(round int) (float64, error)) (f, e, ratio float64, err error) {
	var fs, es, rs []float64
	for i := range rounds {
		a, err := floor(i)
		if err != nil {
			return 0, 0, 0, fmt.Errorf("floor: %w", err)
		}
		c, err := engine(i)
		if err != nil {
			return 0, 0, 0, fmt.Errorf("engine: %w", err)
		}
		fs, es, rs = append(fs, a), append(es, c), append(rs, c/a)
	}
	return Median(fs), Median(es), Median(rs), nil
}
