package boltstore

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/commitstep/engine/store/internal/records"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestKeysSortLikeTheirTextsAndComeBack(t *testing.T) {
	t.Parallel()
	text := rapid.OneOf(rapid.String(), rapid.StringOfN(rapid.SampledFrom([]rune{0, 1, 'a', 'b', 0xff}), 0, 5, -1))
	rapid.Check(t, func(rt *rapid.T) {
		type triple struct {
			key  commitstep.Key
			last string
		}
		draw := func(name string) triple {
			return triple{commitstep.Key{Job: text.Draw(rt, name+" job"), Dataset: text.Draw(rt, name+" dataset")}, text.Draw(rt, name+" last")}
		}
		a, b := draw("a"), draw("b")
		require.Equal(rt, sign(a.key.Compare(b.key)), bytes.Compare(liveKey(a.key), liveKey(b.key)))
		got, err := parseLiveKey(liveKey(a.key))
		require.NoError(rt, err)
		require.Equal(rt, a.key, got)
		k, last, err := parseTriple(tripleKey(a.key, a.last))
		require.NoError(rt, err)
		require.Equal(rt, a, triple{k, last})
		want := a.key.Compare(b.key)
		if want == 0 {
			want = bytes.Compare([]byte(a.last), []byte(b.last))
		}
		require.Equal(rt, sign(want), bytes.Compare(tripleKey(a.key, a.last), tripleKey(b.key, b.last)))
		require.Equal(rt, a.key == b.key, bytes.HasPrefix(tripleKey(b.key, b.last), tripleKey(a.key, "")), "one dataset's prefix is no other's")
	})
	_, _, err := parseTriple([]byte("no end"))
	require.Error(t, err)
	_, err = parseLiveKey([]byte{'a', 0, 7, 'b'})
	require.Error(t, err)
	_, err = parseLiveKey([]byte{'a', 0})
	require.Error(t, err)
	_, _, err = parsePageKey(make([]byte, 19))
	require.Error(t, err)
}

func sign(n int) int {
	switch {
	case n < 0:
		return -1
	case n > 0:
		return 1
	}
	return 0
}

func TestHeaderRecordsSplitOrAreDamage(t *testing.T) {
	t.Parallel()
	h, err := json.Marshal(commitstep.Header{ID: uuid.Max, Key: dataset("x"), PlanHash: "h"})
	require.NoError(t, err)
	steps := []byte(`[{"stage":0,"kind":"k","version":1}]`)
	for _, s := range [][]byte{nil, steps} {
		payload := encodeHeader(h, s)[commitstep.EnvelopeSize:]
		require.True(t, json.Valid(payload))
		gotH, gotS, err := splitHeader(payload)
		require.NoError(t, err)
		require.Equal(t, h, slices.Clone(gotH))
		require.Equal(t, s, slices.Clone(gotS))
		id, err := headerID(gotH)
		require.NoError(t, err)
		require.Equal(t, uuid.Max, id)
		for i := range payload {
			_, _, _ = splitHeader(payload[:i]) // must not panic
		}
	}
	for _, bad := range []string{"", "{}", `{"headerBytes":`, `{"headerBytes":999,"header":{}}`, `{"headerBytes":-1,"header":{}}`, `{"headerBytes":2,"header":{}`, `{"headerBytes":2,"header":{},"steps":}`} {
		_, _, err := splitHeader([]byte(bad))
		require.ErrorIs(t, err, commitstep.ErrDamaged, bad)
	}
}

func TestHistoryRecordsHoldHeaderAndDetail(t *testing.T) {
	t.Parallel()
	header, err := json.Marshal(commitstep.Header{ID: uuid.Max, Key: dataset("x"), PlanHash: "h"})
	require.NoError(t, err)
	tail := records.HistoryTail{State: commitstep.Completed, Ended: time.Unix(1, 0).UTC(), Epoch: 7, Notes: store.HistoryNotes{Executed: 2}}
	for _, detail := range [][]byte{nil, []byte(`[{"stage":0,"kind":"k","version":1}]`)} {
		rec, err := encodeHistory(header, detail, tail)
		require.NoError(t, err)
		var r historyRecord
		require.NoError(t, json.Unmarshal(rec[commitstep.EnvelopeSize:], &r))
		require.Equal(t, tail, records.HistoryTail{State: r.State, Ended: r.Ended, Epoch: r.Epoch, Notes: r.Notes})
		require.JSONEq(t, string(header), string(r.Header))
		require.Equal(t, string(detail), string(r.Detail))
	}
}

func TestSumsAreWrittenAsEncodingJSONDoes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var all sums
		for i := range all {
			all[i] = sum{Count: rapid.Uint64().Draw(t, "count"), Hash: rapid.Uint64().Draw(t, "hash")}
		}
		want, err := json.Marshal(all)
		require.NoError(t, err)
		require.Equal(t, string(want), string(encodeSums(&all)[commitstep.EnvelopeSize:]))
	})
}
