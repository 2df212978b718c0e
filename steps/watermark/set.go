package watermark

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/commitstep/engine/commitstep"
)

// KindName is the registered name of the step.
const KindName = "watermark.set"

// Version of the parameters and the evidence.
const Version = 1

// ErrUnaccepted refuses a plan that moves a watermark of an adopted store which
// no person has accepted yet.
var ErrUnaccepted = errors.New("a person has to accept the job's watermarks first")

// Option changes what [Set] asks for.
type Option func(*params)

// In keeps the watermark in the named target instead of the commit store. The
// process that runs the step must have bound a target of that name.
func In(target string) Option { return func(p *params) { p.Target = target } }

// Set moves the watermark of a source from what the job read before it opened
// the source to what is true once the plan's data is published. The job is the
// plan's. A lower value needs a higher source epoch ([commitstep.Watermark]).
// The mistakes of a move are returned by Publish as *commitstep.PlanError.
func Set(source string, from, to commitstep.Watermark, opts ...Option) commitstep.StepSpec {
	p := params{Source: source, From: from, To: to}
	for _, o := range opts {
		o(&p)
	}
	spec := commitstep.NewSpec(KindName, p)
	if spec.Err == nil {
		// The job is not known yet, and is no part of the check.
		spec.Err = commitstep.WatermarkMove{WatermarkKey: commitstep.WatermarkKey{Source: source}, From: from, To: to}.Check()
	}
	return spec
}

// params are the step's parameters in their stored form.
type params struct {
	Source string               `json:"source"`
	From   commitstep.Watermark `json:"from"`
	To     commitstep.Watermark `json:"to"`
	Target string               `json:"target,omitempty"`
}

// rawParams are params before their watermarks are looked at.
type rawParams struct {
	Source string          `json:"source"`
	From   json.RawMessage `json:"from"`
	To     json.RawMessage `json:"to"`
	Target string          `json:"target"`
}

// quick reads parameters as this package writes them; after false nothing is
// known, and the strict decoder decides.
func (r *rawParams) quick(b []byte) bool {
	var source, from, to, target int
	ok := commitstep.PlainObject(b, func(name, value []byte) (ok bool) {
		switch string(name) {
		case "source":
			source++
			r.Source, ok = commitstep.PlainText(value)
		case "from":
			from++
			r.From, ok = value, true
		case "to":
			to++
			r.To, ok = value, true
		case "target":
			target++
			r.Target, ok = commitstep.PlainText(value)
		}
		return ok
	})
	return ok && source == 1 && from == 1 && to == 1 && target <= 1
}

// decodeParams also refuses a missing `from`: none is a claim about the source,
// and must be written as null.
func decodeParams(s commitstep.Step) (params, error) {
	var raw rawParams
	if !raw.quick(s.Params) {
		raw = rawParams{}
		if err := commitstep.DecodeParams(s, &raw); err != nil {
			return params{}, err
		}
	}
	p := params{Source: raw.Source, Target: raw.Target}
	for _, f := range []struct {
		name string
		raw  json.RawMessage
		into *commitstep.Watermark
		hint string
	}{
		{"from", raw.From, &p.From, "write what the job read before it opened its source; null if the source was never read"},
		{"to", raw.To, &p.To, "write the position that is true once the data is published"},
	} {
		err := errors.New("it is missing")
		if len(bytes.TrimSpace(f.raw)) > 0 {
			err = f.into.UnmarshalJSON(f.raw)
		}
		if err != nil {
			return params{}, &commitstep.PlanError{Where: commitstep.Where(s.Stage, s.Index, s.Kind), Problem: fmt.Sprintf("has a wrong parameter %q", f.name), Err: err, Hint: f.hint}
		}
	}
	return p, nil
}

// evidence is what a stored step knows besides its parameters: whose move it is.
type evidence struct {
	Job   string `json:"job"`
	Token string `json:"token"`
}

// quick is rawParams.quick for evidence.
func (e *evidence) quick(b []byte) bool {
	var job, token int
	ok := commitstep.PlainObject(b, func(name, value []byte) (ok bool) {
		switch string(name) {
		case "job":
			job++
			e.Job, ok = commitstep.PlainText(value)
		case "token":
			token++
			e.Token, ok = commitstep.PlainText(value)
		}
		return ok
	})
	return ok && job == 1 && token == 1
}
