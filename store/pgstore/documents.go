package pgstore

import (
	"fmt"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store/internal/records"
	"github.com/google/uuid"
)

func sealHeader(h *commitstep.Header) ([]byte, error) {
	raw, err := records.AppendHeader(make([]byte, 0, 512), h)
	if err != nil {
		return nil, fmt.Errorf("pgstore: header of sequence %s: %w", h.ID, err)
	}
	return commitstep.Seal(commitstep.RecordHeader, headerKey(h.ID), raw), nil
}

// openHeader reads a header. Its own words about id and dataset are held
// against the row's.
func openHeader(id uuid.UUID, key commitstep.Key, record []byte) (commitstep.Header, error) {
	var h commitstep.Header
	payload, err := commitstep.Open(commitstep.RecordHeader, headerKey(id), record)
	if err != nil {
		return h, err
	}
	if err := records.DecodeHeader(payload, &h); err != nil {
		return h, damaged("the header cannot be decoded: %v", err)
	}
	if h.ID != id || h.Key != key {
		return h, damaged("the header of sequence %s of dataset %s is kept with sequence %s of %s", h.ID, h.Key, id, key)
	}
	for i := range h.Cleanup {
		h.Cleanup[i].Index = h.Steps + i
	}
	return h, nil
}

// openPage reads the steps of page n of a sequence.
func openPage(id uuid.UUID, n, first int, record []byte) ([]commitstep.Step, error) {
	payload, err := commitstep.Open(commitstep.RecordPage, pageKey(id, n), record)
	if err != nil {
		return nil, err
	}
	steps, err := records.DecodeSteps(payload, first)
	if err != nil {
		return nil, damaged("the steps cannot be decoded: %v", err)
	}
	return steps, nil
}
