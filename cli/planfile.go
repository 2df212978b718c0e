package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/commitstep/engine/commitstep"
	"github.com/spf13/pflag"
)

// maxPlanDocument bounds a plan that is held in memory; longer ones are
// streamed as JSON lines.
const maxPlanDocument = 64 << 20

// planSource holds the flags that say where a plan comes from.
type planSource struct {
	file   string
	format string
}

func (p *planSource) addFlags(f *pflag.FlagSet) {
	f.StringVarP(&p.file, "file", "f", "", "the plan, `FILE` or - for stdin (required)")
	f.StringVar(&p.format, "format", "", "yaml, json or jsonl; default: by the file's name, yaml (which reads json too) for stdin")
}

const planHelp = `
A plan is a YAML or JSON document, or JSON lines for very long ones: the
document without its stages on the first line, then one step a line. Names that
end in .jsonl or .ndjson are read as JSON lines. Relative paths in the plan
start at the plan file's directory; from stdin at the working directory.`

// with opens the plan and runs fn with it; JSON lines are still being read
// from the file while fn works.
func (p *planSource) with(ctx context.Context, in *invocation, fn func(*commitstep.Plan) error) error {
	if p.file == "" {
		return usagef("name the plan with -f FILE, or -f - for stdin")
	}
	format, err := p.kind()
	if err != nil {
		return err
	}
	r := in.Stdin
	base, err := os.Getwd()
	if err != nil {
		return failf("change to a directory that exists", "working directory: %v", err)
	}
	if p.file != "-" {
		f, err := os.Open(p.file)
		if errors.Is(err, fs.ErrNotExist) {
			return failf("give the path of a plan file after -f", "there is no file %q", p.file)
		}
		if err != nil {
			return failf("give the path of a readable plan file after -f", "read the plan: %v", err)
		}
		defer f.Close()
		if st, err := f.Stat(); err == nil && st.IsDir() {
			return failf("give the path of a plan file after -f", "%q is a directory", p.file)
		}
		r = f
		abs, err := filepath.Abs(p.file)
		if err != nil {
			return failf("give an absolute path", "plan %q: %v", p.file, err)
		}
		base = filepath.Dir(abs)
	}
	r = &cancelReader{ctx, r}
	var plan *commitstep.Plan
	if format == "jsonl" {
		plan, err = commitstep.ReadPlanLines(r)
	} else {
		plan, err = readDocument(r, format)
	}
	if err != nil {
		if ctx.Err() != nil {
			return &cliError{out: outcome{interrupted: true}, msg: fmt.Sprintf("interrupted while %s was read, nothing was stored", p.shown()), hint: "give the command again"}
		}
		return fmt.Errorf("%s: %w", p.shown(), err)
	}
	plan.BaseDir = base
	return fn(plan)
}

func (p *planSource) shown() string {
	if p.file == "-" {
		return "stdin"
	}
	return name(p.file)
}

func (p *planSource) kind() (string, error) {
	switch p.format {
	case "yaml", "json", "jsonl":
		return p.format, nil
	case "":
	default:
		return "", usagef("the plan format %q is unknown; there are yaml, json, jsonl", p.format)
	}
	switch strings.ToLower(filepath.Ext(p.file)) {
	case ".jsonl", ".ndjson":
		return "jsonl", nil
	case ".json":
		return "json", nil
	}
	return "yaml", nil
}

func readDocument(r io.Reader, format string) (*commitstep.Plan, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxPlanDocument+1))
	if err != nil {
		return nil, failf("", "read the plan: %v", err)
	}
	if len(data) > maxPlanDocument {
		return nil, failf("write long plans as JSON lines (.jsonl)", "the plan is longer than %d MiB", maxPlanDocument>>20)
	}
	if format == "yaml" {
		if data, err = yamlToJSON(data); err != nil {
			return nil, err
		}
	}
	return commitstep.ParsePlan(data)
}

// cancelReader ends a read between two portions when the command is
// interrupted.
type cancelReader struct {
	ctx context.Context
	r   io.Reader
}

func (c *cancelReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}
