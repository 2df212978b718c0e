package records

import (
	"encoding/json"

	"github.com/commitstep/engine/commitstep"
	"github.com/google/uuid"
)

// AppendHeader writes h as encoding/json would. Its error is a time that JSON
// cannot hold.
func AppendHeader(b []byte, h *commitstep.Header) ([]byte, error) {
	var err error
	b = append(b, `{"id":`...)
	b = AppendUUID(b, h.ID)
	b = append(b, `,"job":`...)
	b = AppendText(b, h.Job)
	b = append(b, `,"dataset":`...)
	b = AppendText(b, h.Dataset)
	if h.PlanID != "" {
		b = append(b, `,"planId":`...)
		b = AppendText(b, h.PlanID)
	}
	b = append(b, `,"planHash":`...)
	b = AppendText(b, h.PlanHash)
	b = append(b, `,"created":`...)
	if b, err = AppendTime(b, h.Created); err != nil {
		return nil, err
	}
	b = AppendInt(b, `,"steps":`, h.Steps)
	b = AppendInt(b, `,"stages":`, h.Stages)
	if h.PageSize != 0 {
		b = AppendInt(b, `,"pageSize":`, h.PageSize)
	}
	b = AppendInt(b, `,"firstWatermark":`, h.FirstWatermark)
	for _, part := range [...]struct {
		name string
		any  bool
		v    any
	}{{`,"locks":`, len(h.Locks) > 0, h.Locks}, {`,"moves":`, len(h.Moves) > 0, h.Moves}, {`,"cleanup":`, len(h.Cleanup) > 0, h.Cleanup}} {
		if !part.any {
			continue
		}
		b = append(b, part.name...)
		if b, err = AppendJSON(b, part.v); err != nil {
			return nil, err
		}
	}
	if h.Used != nil {
		b = appendUsed(append(b, `,"used":`...), h.Used)
	}
	if h.AcceptReusedPaths != "" {
		b = append(b, `,"acceptReusedPaths":`...)
		b = AppendText(b, h.AcceptReusedPaths)
	}
	if h.Writer != "" {
		b = append(b, `,"writer":`...)
		b = AppendText(b, h.Writer)
	}
	return append(b, '}'), nil
}

func appendUsed(b []byte, u *commitstep.UsedPaths) []byte {
	comma := byte('{')
	for _, part := range [...]struct {
		name string
		list commitstep.PathDigests
	}{{`"sources":"`, u.Sources}, {`"above":"`, u.Above}, {`"cleanups":"`, u.Cleanups}} {
		if len(part.list) > 0 {
			b = append(append(b, comma), part.name...)
			b, comma = append(part.list.Append(b), '"'), ','
		}
	}
	if comma == '{' {
		b = append(b, comma)
	}
	return append(b, '}')
}

// DecodeHeader reads a header, in any order of fields. raw may be reused by the
// caller.
func DecodeHeader(raw []byte, h *commitstep.Header) error {
	if parseHeader(raw, h) {
		return nil
	}
	*h = commitstep.Header{}
	return json.Unmarshal(raw, h)
}

// parseHeader reads what AppendHeader writes of a plain plan; false for all else,
// and then h is not to be used.
func parseHeader(raw []byte, h *commitstep.Header) bool {
	p := &parser{b: raw, ok: true}
	p.expect(`{"id":"`)
	id, err := uuid.ParseBytes(p.text())
	h.ID = id
	p.expect(`,"job":"`)
	h.Job = string(p.text())
	p.expect(`,"dataset":"`)
	h.Dataset = string(p.text())
	if p.skip(`,"planId":"`) {
		h.PlanID = string(p.text())
	}
	p.expect(`,"planHash":"`)
	h.PlanHash = string(p.text())
	p.expect(`,"created":"`)
	terr := h.Created.UnmarshalText(p.text())
	p.expect(`,"steps":`)
	h.Steps = p.int()
	p.expect(`,"stages":`)
	h.Stages = p.int()
	if p.skip(`,"pageSize":`) {
		h.PageSize = p.int()
	}
	p.expect(`,"firstWatermark":`)
	if h.FirstWatermark = -1; !p.skip(`-1`) {
		h.FirstWatermark = p.int()
	}
	if p.skip(`,"writer":"`) {
		h.Writer = string(p.text())
	}
	p.expect(`}`)
	return p.ok && err == nil && terr == nil && p.at == len(p.b)
}
