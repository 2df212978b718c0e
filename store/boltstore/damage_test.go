package boltstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// sample is a store with something in every table, and what it says.
type sample struct {
	bytes []byte
	says  map[string]string
	ids   []uuid.UUID
}

func makeSample(t *testing.T) *sample {
	t.Helper()
	ctx := context.Background()
	path := filepath.Join(t.TempDir(), "sample.db")
	s, err := Init(path, nil)
	require.NoError(t, err)
	me := join(t, s)
	var x sample
	keep := func(l commitstep.Live) commitstep.Live { x.ids = append(x.ids, l.ID); return l }
	for i := range 12 {
		l, err := s.Put(ctx, draft(dataset(fmt.Sprintf("live %d", i)), 4, func(h *commitstep.Header) {
			h.PlanID = fmt.Sprintf("plan %d", i)
			h.Locks = []string{fmt.Sprintf("lock %d", i)}
		}), me)
		require.NoError(t, err)
		keep(l)
		switch i % 3 {
		case 1:
			require.NoError(t, s.Record(ctx, fenceOf(l), true, store.Event{Type: store.EventDone, Step: 1}, store.Event{Type: store.EventNote, Step: 2, Data: json.RawMessage(`{"a":"b"}`)}))
		case 2:
			require.NoError(t, s.Park(ctx, fenceOf(l), store.Parking{Reason: commitstep.ConflictFound, Step: 1, Message: "m"}))
		}
	}
	long := keep(put(t, s, me, dataset("long"), 3*store.PageSize))
	require.NoError(t, s.Record(ctx, fenceOf(long), true, store.Event{Type: store.EventDone, Step: 5}, store.Event{Type: store.EventDone, Step: 1030}))
	for i := range 30 {
		m := commitstep.WatermarkMove{WatermarkKey: commitstep.WatermarkKey{Job: "job", Source: fmt.Sprintf("s%d", i)}, To: commitstep.Int(int64(i)), Token: uuid.New()}
		l, err := s.Put(ctx, draft(dataset(fmt.Sprintf("done %d", i)), 4, func(h *commitstep.Header) { h.PlanID = "p"; h.Moves = []commitstep.WatermarkMove{m} }), me)
		require.NoError(t, err)
		keep(l)
		require.NoError(t, s.Complete(ctx, fenceOf(l), i%10 == 0, store.HistoryNotes{Executed: 1}, store.Event{Type: store.EventMove, Step: 3, Move: m}))
	}
	for i := range 5 {
		require.NoError(t, s.RecordAudit(ctx, store.AuditEntry{Person: somebody, Action: "test", After: fmt.Sprint(i)}))
	}
	x.says = says(t, s, x.ids)
	require.NoError(t, s.Close())
	x.bytes, err = os.ReadFile(path)
	require.NoError(t, err)
	return &x
}

const unsaid = "error"

// says asks the store for everything. An answer that is a damage error becomes
// "error"; any other error fails the test.
func says(t testing.TB, s *Store, ids []uuid.UUID) map[string]string {
	t.Helper()
	ctx := context.Background()
	out := map[string]string{}
	set := func(what string, v any, err error) {
		switch {
		case errors.Is(err, commitstep.ErrNotFound):
			out[what] = "none"
		case errors.Is(err, commitstep.ErrDamaged), errors.Is(err, commitstep.ErrNewerFormat):
			out[what] = unsaid
		case err != nil:
			t.Fatalf("%s: %v", what, err)
		default:
			b, err := json.Marshal(v)
			require.NoError(t, err)
			out[what] = string(b)
		}
	}
	strip := func(l commitstep.Live) commitstep.Live { l.Owner = commitstep.Instance{}; return l }
	for l, err := range s.Scan(ctx, store.Filter{}) {
		set("scan "+l.ID.String(), strip(l), err)
	}
	for _, id := range ids {
		l, err := s.Find(ctx, id)
		set("find "+id.String(), strip(l), err)
		for n := range 4 {
			p, err := s.Steps(ctx, id, n)
			set(fmt.Sprintf("steps %s %d", id, n), p, err)
		}
		e, err := s.LookupHistory(ctx, id)
		set("outcome "+id.String(), e, err)
	}
	for e, err := range s.ListHistory(ctx, store.HistoryFilter{}) {
		set("history "+e.ID.String(), e, err)
	}
	for e, err := range s.ListAudit(ctx) {
		set(fmt.Sprintf("audit %d", e.Number), e, err)
	}
	for v, err := range s.ListWatermarks(ctx, "") {
		set("mark "+v.Job+"/"+v.Source, v, err)
	}
	for i := range 30 {
		v, err := s.Watermark(ctx, commitstep.WatermarkKey{Job: "job", Source: fmt.Sprintf("s%d", i)})
		set(fmt.Sprintf("watermark %d", i), v, err)
		p, err := s.LookupPlan(ctx, dataset(fmt.Sprintf("done %d", i)), "p")
		set(fmt.Sprintf("plan %d", i), p, err)
		l, err := s.Get(ctx, dataset(fmt.Sprintf("done %d", i)))
		set(fmt.Sprintf("get done %d", i), strip(l), err)
	}
	for i := range 12 {
		l, err := s.Get(ctx, dataset(fmt.Sprintf("live %d", i)))
		set(fmt.Sprintf("get live %d", i), strip(l), err)
		p, err := s.LookupPlan(ctx, dataset(fmt.Sprintf("live %d", i)), fmt.Sprintf("plan %d", i))
		set(fmt.Sprintf("plan live %d", i), p, err)
	}
	return out
}

// compare holds what a damaged store says against what it said: every answer
// is the same, or an error, or (in lists) missing while the store says that
// something cannot be read.
func (x *sample) compare(s *Store, now map[string]string) error {
	different := 0
	for what, v := range now {
		if v == unsaid {
			different++
			continue
		}
		want, known := x.says[what]
		if !known {
			return fmt.Errorf("%s appeared: %s", what, v)
		}
		if v != want {
			return fmt.Errorf("%s:\n was %s\n is  %s", what, want, v)
		}
	}
	for what := range x.says {
		if _, ok := now[what]; !ok {
			different++
		}
	}
	if different > 0 {
		for range s.Check(context.Background()) {
			return nil
		}
		return fmt.Errorf("%d answers are missing and Check finds nothing", different)
	}
	return nil
}

// flip changes one byte and judges what becomes of the store.
func (x *sample) flip(t *testing.T, path string, at int, mask byte) (outcome string, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	b := append([]byte(nil), x.bytes...)
	b[at] ^= mask
	require.NoError(t, os.WriteFile(path, b, 0o600))
	s, err := Open(path, &Options{MarkDelay: time.Hour})
	if err != nil {
		if errors.Is(err, commitstep.ErrDamaged) || errors.Is(err, commitstep.ErrNewerFormat) || errors.Is(err, ErrNotStore) {
			return "refused", nil
		}
		return "", fmt.Errorf("an error of the wrong kind: %w", err)
	}
	defer s.Close()
	now := says(t, s, x.ids)
	if err := x.compare(s, now); err != nil {
		return "", err
	}
	if len(now) == len(x.says) {
		same := true
		for _, v := range now {
			same = same && v != unsaid
		}
		if same {
			return "same", nil
		}
	}
	return "set aside", nil
}

func TestAnyFlippedByteChangesNothingOrIsAnError(t *testing.T) {
	t.Parallel()
	x := makeSample(t)
	// COMMITSTEP_FLIP_SEED and COMMITSTEP_FLIP_SECONDS look further.
	seed, seconds := envInt(t, "COMMITSTEP_FLIP_SEED", 1), envInt(t, "COMMITSTEP_FLIP_SECONDS", 12)
	rng := rand.New(rand.NewPCG(uint64(seed), 2))
	page := os.Getpagesize()
	var at []int
	for i := range pageHeader + metaSize + 8 { // both meta pages
		at = append(at, i, page+i)
	}
	for p := 2 * page; p < len(x.bytes); p += page {
		if binary.NativeEndian.Uint16(x.bytes[p+8:]) == 0 {
			continue // never written
		}
		for range 6 {
			at = append(at, p+rng.IntN(pageHeader), p+pageHeader+rng.IntN(20*elementSize))
		}
		for range 12 {
			at = append(at, p+rng.IntN(page))
		}
	}
	dir := t.TempDir()
	outcomes := map[string]int{}
	start := time.Now()
	// Mixed, so that a slow disk still sees every kind of place.
	rng.Shuffle(len(at), func(i, j int) { at[i], at[j] = at[j], at[i] })
	for i, a := range at {
		all := outcomes["refused"] > 0 && outcomes["same"] > 0 && outcomes["set aside"] > 0
		if all && time.Since(start) > time.Duration(seconds)*time.Second {
			t.Logf("stopped after %d of %d flips", i, len(at))
			break
		}
		mask := byte(1 << rng.IntN(8))
		o, err := x.flip(t, filepath.Join(dir, "flipped.db"), a, mask)
		if err != nil {
			t.Fatalf("byte %d (page %d, offset %d) with %#x: %v", a, a/page, a%page, mask, err)
		}
		outcomes[o]++
	}
	t.Log(outcomes, "of", len(at))
	require.Positive(t, outcomes["refused"])
	require.Positive(t, outcomes["same"])
	require.Positive(t, outcomes["set aside"])
}

func envInt(t *testing.T, name string, otherwise int) int {
	v, ok := os.LookupEnv(name)
	if !ok {
		return otherwise
	}
	n, err := strconv.Atoi(v)
	require.NoError(t, err)
	return n
}

// A disk that loses a write leaves an older page, sound in itself. The file is
// taken twice, some work apart, and one page of the newer is set back.
func TestALostPageWriteIsFound(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	x := makeSample(t)
	path := filepath.Join(t.TempDir(), "a.db")
	require.NoError(t, os.WriteFile(path, x.bytes, 0o600))
	s, err := Open(path, nil)
	require.NoError(t, err)
	me := join(t, s)
	for i := range 12 {
		l, err := s.Get(ctx, dataset(fmt.Sprintf("live %d", i)))
		require.NoError(t, err)
		if l, err = s.ClaimOne(ctx, me, l.Key); i%2 == 0 && err == nil && l.State == commitstep.Pending {
			require.NoError(t, s.Record(ctx, fenceOf(l), true, store.Event{Type: store.EventDone, Step: 3}))
		}
		l, err = s.Put(ctx, draft(dataset(fmt.Sprintf("late %d", i)), 4, nil), me)
		require.NoError(t, err)
		require.NoError(t, s.Complete(ctx, fenceOf(l), false, store.HistoryNotes{}))
		x.ids = append(x.ids, l.ID)
	}
	require.NoError(t, s.Close())
	s, err = Open(path, nil) // claims that only memory knew are forgotten
	require.NoError(t, err)
	x.says = says(t, s, x.ids)
	require.NoError(t, s.Close())
	newer, err := os.ReadFile(path)
	require.NoError(t, err)
	page := os.Getpagesize()
	found := 0
	for at := 2 * page; at+page <= min(len(x.bytes), len(newer)); at += page {
		if bytes.Equal(x.bytes[at:at+page], newer[at:at+page]) {
			continue
		}
		for _, old := range [][]byte{x.bytes[at : at+page], make([]byte, page)} {
			b := bytes.Clone(newer)
			copy(b[at:], old)
			require.NoError(t, os.WriteFile(path, b, 0o600))
			s, err := Open(path, nil)
			if err != nil {
				require.ErrorIs(t, err, commitstep.ErrDamaged)
				found++
				continue
			}
			require.NoError(t, x.compare(s, says(t, s, x.ids)), "page %d", at/page)
			require.NoError(t, s.Close())
		}
	}
	require.Positive(t, found)
}

func TestACutFileIsRefusedOrWhole(t *testing.T) {
	t.Parallel()
	x := makeSample(t)
	rng := rand.New(rand.NewPCG(3, 4))
	path := filepath.Join(t.TempDir(), "cut.db")
	whole := 0
	for i := range 300 {
		n := rng.IntN(len(x.bytes))
		if i < 40 {
			n = i * 250
		}
		require.NoError(t, os.WriteFile(path, x.bytes[:n], 0o600))
		s, err := Open(path, nil)
		if err == nil {
			// Only space that was never used was cut off.
			require.NoError(t, x.compare(s, says(t, s, x.ids)))
			require.NoError(t, s.Close())
			whole++
			continue
		}
		switch {
		case n == 0:
			require.ErrorIs(t, err, ErrEmpty)
		case errors.Is(err, ErrNotStore):
			require.Less(t, n, pageHeader+metaSize, "%v", err)
		default:
			require.ErrorIs(t, err, commitstep.ErrDamaged)
		}
	}
	t.Log(whole, "of 300 cuts lost nothing")
}
