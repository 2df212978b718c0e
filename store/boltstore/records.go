package boltstore

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/commitstep/engine/store/internal/records"
	"github.com/google/uuid"
)

// StoreFormat is the newest layout of the file that this code reads and writes.
const StoreFormat = 2

// A new file has baseFormat. One in which paths are remembered has pathsFormat.
const (
	baseFormat  = 1
	pathsFormat = 2
)

// inlineLimit is the most bytes of steps kept in the header's own record.
// Beyond it, lists of sequences would drag the steps through memory.
const inlineLimit = 256 << 10

var (
	keyStore = []byte("store")
	keySums  = []byte("sums")
)

// storeRecord says what the file is.
type storeRecord struct {
	Format  int       `json:"format"`
	ID      uuid.UUID `json:"id"`
	Created time.Time `json:"created"`
	// SealedFor and Stamped as in store.Info.
	SealedFor string `json:"sealedFor,omitempty"`
	Stamped   string `json:"stamped,omitempty"`
	// Adoptions counts how often a stamped copy was adopted; a job may ingest
	// once its acceptance names the newest.
	Adoptions int `json:"adoptions,omitempty"`
	// CopiedFrom is the store that this one was filled from; Importing is set
	// until that was done.
	CopiedFrom uuid.UUID `json:"copiedFrom,omitzero"`
	Importing  bool      `json:"importing,omitempty"`
}

// lockRecord is the holder of a lock.
type lockRecord struct {
	ID uuid.UUID `json:"id"`
	commitstep.Key
}

// acceptRecord says that a person accepted a job's watermarks after adoption
// number Adoption.
type acceptRecord struct {
	Adoption int       `json:"adoption"`
	At       time.Time `json:"at"`
}

// stepNote is what is known of one step besides its done mark.
type stepNote = commitstep.Progress

// progressPage is what is known of one page of steps: done marks as a bitmap,
// and notes only for steps that have any.
type progressPage struct {
	Done  []byte            `json:"done,omitempty"`
	Steps map[int]*stepNote `json:"steps,omitempty"`
}

// conditionRecord is the changing part of a sequence; short sequences keep
// their progress in it, so that an attempt costs one key.
type conditionRecord struct {
	commitstep.Condition
	Progress *progressPage `json:"progress,omitempty"`
	// seen is what raised the version last; none has the next save raise it.
	seen visible
}

// visible is all that raises the version when it changes.
type visible struct {
	state    commitstep.State
	reason   commitstep.ParkReason
	step     int
	cleaning bool
	declared int // they only get more
	message  string
}

func visibleOf(c *commitstep.Condition) visible {
	return visible{c.State, c.Reason, c.ParkStep, c.Cleaning, len(c.DeclaredPublished), c.Message}
}

// freshCondition is that of a sequence without a condition record: as put.
func freshCondition(h *commitstep.Header, owner commitstep.Instance) commitstep.Condition {
	return commitstep.Condition{State: commitstep.Pending, ParkStep: -1, Version: 1, Epoch: 1, Owner: owner, Updated: h.Created}
}

// A header record's payload is written by hand, in this order and without
// blanks, so that the header can be read without its steps, and both can be
// copied into the history without being decoded:
//
//	{"headerBytes":N,"header":{…N bytes…},"steps":[…]}
//
// Long sequences have no "steps".

var (
	headerStart = []byte(`{"headerBytes":`)
	headerMid   = []byte(`,"header":`)
	stepsMid    = []byte(`,"steps":`)
)

// encodeHeader returns the payload with room for an envelope before it.
func encodeHeader(header, steps []byte) []byte {
	b := make([]byte, commitstep.EnvelopeSize, commitstep.EnvelopeSize+len(header)+len(steps)+48)
	b = append(b, headerStart...)
	b = strconv.AppendInt(b, int64(len(header)), 10)
	b = append(b, headerMid...)
	b = append(b, header...)
	if steps != nil {
		b = append(b, stepsMid...)
		b = append(b, steps...)
	}
	return append(b, '}')
}

// splitHeader finds the two parts of a header record's payload; steps is nil
// for a long sequence. The parts share payload's memory.
func splitHeader(payload []byte) (header, steps []byte, err error) {
	bad := func() ([]byte, []byte, error) {
		return nil, nil, damaged("the header record is not laid out as documented")
	}
	rest, ok := bytes.CutPrefix(payload, headerStart)
	if !ok {
		return bad()
	}
	i := bytes.IndexByte(rest, ',')
	if i < 1 || i > 9 {
		return bad()
	}
	n, err := strconv.Atoi(string(rest[:i]))
	if err != nil {
		return bad()
	}
	if rest, ok = bytes.CutPrefix(rest[i:], headerMid); !ok || n < 2 || n >= len(rest) {
		return bad()
	}
	header, rest = rest[:n], rest[n:]
	if string(rest) == "}" {
		return header, nil, nil
	}
	if rest, ok = bytes.CutPrefix(rest, stepsMid); !ok || len(rest) < 3 || rest[len(rest)-1] != '}' {
		return bad()
	}
	return header, rest[:len(rest)-1], nil
}

// openHeader checks a header record and splits it.
func openHeader(key, record []byte) (header, steps []byte, err error) {
	payload, err := commitstep.Open(commitstep.RecordHeader, key, record)
	if err != nil {
		return nil, nil, err
	}
	return splitHeader(payload)
}

// decodeHeader checks that the header is the one of the key it is kept under.
func decodeHeader(raw []byte, key commitstep.Key) (*commitstep.Header, error) {
	h := new(commitstep.Header)
	if err := records.DecodeHeader(raw, h); err != nil {
		return nil, damaged("the payload cannot be decoded: %v", err)
	}
	if h.Key != key {
		return nil, damaged("the header of dataset %s is kept under %s", h.Key, key)
	}
	for i := range h.Cleanup {
		h.Cleanup[i].Index = h.Steps + i
	}
	return h, nil
}

// decode reads a payload whose checksum was right; if it is no JSON all the
// same, that is damage too, never an empty value.
func decode(payload []byte, v any) error {
	if err := json.Unmarshal(payload, v); err != nil {
		return damaged("the payload cannot be decoded: %v", err)
	}
	return nil
}

// decodeSteps reads the steps of a page; first is the index of its first step.
// raw may be reused by the caller.
func decodeSteps(raw []byte, first int) ([]commitstep.Step, error) {
	steps, err := records.DecodeSteps(raw, first)
	if err != nil {
		return nil, damaged("the payload cannot be decoded: %v", err)
	}
	return steps, nil
}

// openRecord checks an envelope and decodes its payload into v.
func openRecord(t commitstep.RecordType, key, record []byte, v any) error {
	payload, err := commitstep.Open(t, key, record)
	if err != nil {
		return err
	}
	return decode(payload, v)
}

func sealRecord(t commitstep.RecordType, key []byte, v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode a record of type %q: %w", byte(t), err)
	}
	return commitstep.Seal(t, key, b), nil
}

// historyRecord is a stored outcome. Header and Detail are the bytes of the
// live record.
type historyRecord struct {
	Header        json.RawMessage    `json:"header"`
	Detail        json.RawMessage    `json:"detail,omitempty"`
	State         commitstep.State   `json:"state"`
	Ended         time.Time          `json:"ended"`
	Epoch         uint64             `json:"epoch"`
	Notes         store.HistoryNotes `json:"notes"`
	Message       string             `json:"message,omitempty"`
	CleanupReport string             `json:"cleanupReport,omitempty"`
}

// encodeHistory returns the payload with room for an envelope before it.
func encodeHistory(header, detail []byte, t records.HistoryTail) ([]byte, error) {
	b := make([]byte, commitstep.EnvelopeSize, commitstep.EnvelopeSize+len(header)+len(detail)+256)
	b = append(b, `{"header":`...)
	b = append(b, header...)
	if detail != nil {
		b = append(b, `,"detail":`...)
		b = append(b, detail...)
	}
	b = append(b, ',')
	return records.AppendHistoryTail(b, t)
}

// decodeHistory turns the record of sequence id into what History shows.
func decodeHistory(key, record []byte) (store.HistoryEntry, error) {
	var r historyRecord
	if err := openRecord(commitstep.RecordHistory, key, record, &r); err != nil {
		return store.HistoryEntry{}, err
	}
	var h commitstep.Header
	if err := decode(r.Header, &h); err != nil {
		return store.HistoryEntry{}, err
	}
	if id, err := parseID(key); err != nil || id != h.ID {
		return store.HistoryEntry{}, damaged("the history of sequence %s is kept under %x", h.ID, key)
	}
	e := store.HistoryEntry{ID: h.ID, Key: h.Key, PlanID: h.PlanID, PlanHash: h.PlanHash, State: r.State,
		Created: h.Created, Ended: r.Ended, Steps: h.Steps, Stages: h.Stages, Epoch: r.Epoch, Moves: h.Moves,
		Locks: h.Locks, Cleanup: h.Cleanup, AcceptReusedPaths: h.AcceptReusedPaths, Notes: r.Notes, Message: r.Message, CleanupReport: r.CleanupReport}
	if r.Detail != nil {
		var err error
		if e.Detail, err = decodeSteps(r.Detail, 0); err != nil {
			return store.HistoryEntry{}, err
		}
	}
	return e, nil
}
