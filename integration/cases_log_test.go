package integration_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/cespare/xxhash/v2"
	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/driver"
	"github.com/commitstep/engine/steps/fsrename"
	"github.com/commitstep/engine/store/boltstore"
	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"
)

// tables in the order in which the store counts them; see docs/formats.md.
var tables = []string{"meta", "live", "cleaning", "pages", "conditions", "progress", "locks", "watermarks", "accepted", "planids", "history", "audit", "quarantined"}

// rewrite replaces records of a store the way a program would that keeps its
// counts right: what is tested then is what a single record says.
func rewrite(t testing.TB, path, table string, change func(key, record []byte) []byte) (n int) {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	require.NoError(t, db.Update(func(tx *bbolt.Tx) error {
		type sum struct {
			N uint64 `json:"n"`
			H uint64 `json:"h,string"`
		}
		var sums []sum
		meta := tx.Bucket([]byte("meta"))
		raw, err := commitstep.Open(commitstep.RecordMeta, []byte("sums"), meta.Get([]byte("sums")))
		if err != nil {
			return err
		}
		if err := json.Unmarshal(raw, &sums); err != nil {
			return err
		}
		require.Len(t, sums, len(tables))
		i := 0
		for tables[i] != table {
			i++
		}
		bucket := tx.Bucket([]byte(table))
		changed := map[string][]byte{}
		if err := bucket.ForEach(func(k, v []byte) error {
			if r := change(k, bytes.Clone(v)); r != nil {
				sums[i].H += mixOf(k, r) - mixOf(k, v)
				changed[string(k)] = r
			}
			return nil
		}); err != nil {
			return err
		}
		for k, r := range changed {
			n++
			if err := bucket.Put([]byte(k), r); err != nil {
				return err
			}
		}
		if raw, err = json.Marshal(sums); err != nil {
			return err
		}
		return meta.Put([]byte("sums"), commitstep.Seal(commitstep.RecordMeta, []byte("sums"), raw))
	}))
	return n
}

// mixOf is what a record adds to its table's hash; see docs/formats.md.
func mixOf(key, record []byte) uint64 {
	var crc uint64
	if len(record) >= 8 {
		crc = uint64(record[4])<<24 | uint64(record[5])<<16 | uint64(record[6])<<8 | uint64(record[7])
	}
	x := xxhash.Sum64(key) + crc*0x9e3779b97f4a7c15 + 1
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// three promises three datasets, of which the tests then damage the second.
func three(t *testing.T) *box {
	t.Helper()
	b := newBox(t)
	for _, d := range []string{"alpha", "victim", "zulu"} {
		b.put("in-"+d, d)
		b.promise(b.move(d, "in-"+d, "out/"+d))
	}
	return b
}

// others must be published whatever happened to the victim.
func (b *box) othersPublished(want ...string) {
	b.t.Helper()
	for _, d := range want {
		require.Equal(b.t, d, b.get("out/"+d))
	}
}

// An entry of 0 or 2 bytes, of nonsense, or of `{}` in a sound envelope: that
// dataset is set aside and blocks its own ingestion, the others go on, nothing
// of it is run, and nothing panics.
func TestCaseC19TornEntry(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(k, r []byte) []byte{
		"0 bytes":          func(_, _ []byte) []byte { return []byte{} },
		"2 bytes":          func(_, r []byte) []byte { return r[:2] },
		"envelope only":    func(_, r []byte) []byte { return r[:8] },
		"half":             func(_, r []byte) []byte { return r[:len(r)/2] },
		"zeros":            func(_, r []byte) []byte { return make([]byte, len(r)) },
		"sealed {}":        func(k, _ []byte) []byte { return commitstep.Seal(commitstep.RecordHeader, k, []byte("{}")) },
		"sealed null":      func(k, _ []byte) []byte { return commitstep.Seal(commitstep.RecordHeader, k, []byte("null")) },
		"sealed nothing":   func(k, _ []byte) []byte { return commitstep.Seal(commitstep.RecordHeader, k, nil) },
		"another's record": func(k, _ []byte) []byte { return commitstep.Seal(commitstep.RecordLock, k, []byte("{}")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := three(t)
			require.Equal(t, 1, rewrite(t, b.db(), "live", func(k, r []byte) []byte {
				if bytes.Contains(k, []byte("victim")) {
					return change(k, r)
				}
				return nil
			}))
			b.checkQuarantined("victim", false)
		})
	}
}

// checkQuarantined recovers twice: the victim is set aside, the others are
// published.
func (b *box) checkQuarantined(victim string, newer bool) {
	b.t.Helper()
	t := b.t
	for range 2 {
		e := b.open(settings{})
		q, err := e.store.Quarantine(t.Context())
		require.NoError(t, err)
		require.NotEmpty(t, q)
		for _, one := range q {
			require.Equal(t, newer, one.Newer, one.Problem)
			require.True(t, one.NameKnown, "%+v", one)
			require.Equal(t, commitstep.Key{Job: "j", Dataset: victim}, one.Key)
		}
		rep, err := e.Recover(t.Context(), "j")
		require.NoError(t, err)
		require.False(t, rep.MayIngest(victim))
		require.True(t, rep.MayIngest("alpha"))
		require.NotEmpty(t, rep.Quarantined)
		_, err = e.Publish(t.Context(), b.move(victim, "in-"+victim, "elsewhere"))
		require.Error(t, err, "a second plan for what cannot be read")
		if !newer {
			problems := 0
			for _, err := range e.store.Check(t.Context()) {
				require.NoError(t, err)
				problems++
			}
			require.Positive(t, problems, "store check finds it")
		}
		e.shut(t)
	}
	b.othersPublished("alpha", "zulu")
	require.Equal(t, victim, b.get("in-"+victim), "staging of what cannot be read")
	require.Equal(t, none, b.get("out/"+victim))
}

// One byte flipped, or the file cut, anywhere: either nothing of what the store
// says has changed, or one dataset is set aside, or the store does not open
// with one clear error. It never says less than was promised without saying so.
func TestCaseC20DamageAnywhere(t *testing.T) {
	t.Parallel()
	b := three(t)
	sound, err := os.ReadFile(b.db())
	require.NoError(t, err)
	work := filepath.Join(t.TempDir(), "commit.db")
	r := rand.New(rand.NewPCG(20, 20))
	look := func(what string, bytes []byte) {
		require.NoError(t, os.WriteFile(work, bytes, 0o600))
		st, err := boltstore.Open(work, nil)
		if err != nil {
			require.False(t, strings.Contains(err.Error(), "\n"), "%s: one line: %v", what, err)
			require.Contains(t, err.Error(), work, what)
			return
		}
		defer func() { require.NoError(t, st.Close()) }()
		found := map[string]bool{}
		for live, err := range st.Scan(context.Background(), allOf("j")) {
			require.NoError(t, err, what)
			require.Equal(t, 2, live.Steps, what)
			found[live.Dataset] = true
		}
		q, err := st.Quarantine(context.Background())
		require.NoError(t, err)
		blocked := false
		for _, one := range q {
			if one.NameKnown {
				found[one.Key.Dataset] = true
			} else {
				blocked = true
			}
		}
		for _, d := range []string{"alpha", "victim", "zulu"} {
			require.True(t, found[d] || blocked, "%s: nothing is said of %s", what, d)
		}
	}
	look("nothing changed", sound)
	used := usedPages(sound)
	for range 400 {
		at := used[r.IntN(len(used))]*4096 + r.IntN(4096)
		if at >= len(sound) {
			continue
		}
		flipped := bytes.Clone(sound)
		flipped[at] ^= 1 << r.IntN(8)
		look(fmt.Sprintf("bit flipped at %d", at), flipped)
	}
	for _, n := range []int{0, 1, 100, 4095, 4096, 8192, len(sound) / 2, len(sound) - 4096, len(sound) - 1} {
		look(fmt.Sprintf("cut to %d", n), sound[:n])
	}
	for range 30 {
		n := r.IntN(len(sound))
		look(fmt.Sprintf("cut to %d", n), sound[:n])
	}
}

// usedPages are those that hold anything, so that flips are not wasted on
// zeros.
func usedPages(file []byte) []int {
	var out []int
	for p := 0; p*4096 < len(file); p++ {
		if len(bytes.Trim(file[p*4096:min(len(file), (p+1)*4096)], "\x00")) > 0 {
			out = append(out, p)
		}
	}
	return out
}

// Damage in one dataset's payload is that dataset's trouble alone, and what is
// intact of the log is honoured.
func TestCaseC20OneRecordDamaged(t *testing.T) {
	t.Parallel()
	b := three(t)
	file, err := os.ReadFile(b.db())
	require.NoError(t, err)
	at := bytes.LastIndex(file, []byte(`out/victim`))
	require.Positive(t, at)
	// The newest copy is the one in use; older ones are free pages.
	for i := 0; i < len(file); {
		j := bytes.Index(file[i:], []byte(`out/victim`))
		if j < 0 {
			break
		}
		file[i+j] ^= 0x20
		i += j + 1
	}
	require.NoError(t, os.WriteFile(b.db(), file, 0o600))
	b.checkQuarantined("victim", false)
}

// A reader sees nothing of a sequence, or all of it.
func TestCaseC23NeverHalfASequence(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(root, "data"), 0o755))
	initStore(t, filepath.Join(root, "commit.db"))
	e, err := openEngine(root, settings{kinds: []commitstep.Kind{noopKind()}})
	require.NoError(t, err)
	defer func() { require.NoError(t, e.close()) }()
	const steps = 3000
	done := make(chan struct{})
	var wg sync.WaitGroup
	seen := 0
	wg.Go(func() {
		for {
			for live, err := range e.store.Scan(t.Context(), allOf("big")) {
				if err != nil {
					t.Error(err)
					return
				}
				if live.Steps != steps {
					t.Errorf("a sequence of %d steps is shown", live.Steps)
				}
				n := 0
				for page := 0; n < live.Steps; page++ {
					p, err := e.store.Steps(t.Context(), live.ID, page)
					if err != nil || len(p.Steps) == 0 {
						break // it ended meanwhile
					}
					n += len(p.Steps)
				}
				if n == steps {
					seen++
				}
			}
			select {
			case <-done:
				return
			default:
			}
		}
	})
	for i := range 10 {
		_, err := e.Publish(t.Context(), manySteps(fmt.Sprint("set ", i), steps))
		require.NoError(t, err)
	}
	close(done)
	wg.Wait()
	require.Positive(t, seen, "the reader never saw a sequence")
}

// Emptiness is not completion: a sequence whose record of progress is empty or
// gone to nothing is not taken for done.
func TestCaseC24EmptyIsNotCompleted(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	for _, d := range []string{"alpha", "victim", "zulu"} {
		b.put("in-"+d, d)
		b.promise(b.move(d, "in-"+d, "out/"+d))
		// A second driver that ends early leaves a record of its attempt.
		b.recoverUntil("attempt.recorded", d)
	}
	var victim string
	e := b.open(settings{})
	live, err := e.store.Get(t.Context(), commitstep.Key{Job: "j", Dataset: "victim"})
	require.NoError(t, err)
	victim = string(live.ID[:])
	e.shut(t)
	require.Equal(t, 1, rewrite(t, b.db(), "conditions", func(k, _ []byte) []byte {
		if string(k) == victim {
			return []byte{}
		}
		return nil
	}))
	b.checkQuarantined("victim", false)
	// And without a mark at all, the steps are looked at, not believed.
	b2 := newBox(t)
	b2.put("in-d", "d")
	b2.promise(b2.move("d", "in-d", "out/d"))
	res, _ := b2.recover("d", settings{})
	require.Equal(t, 2, res.Executed)
	require.Equal(t, "d", b2.get("out/d"))
}

// recoverUntil lets a recovery of one dataset stop at a named point.
func (b *box) recoverUntil(point, dataset string) {
	b.t.Helper()
	ctx, stop := context.WithCancel(b.t.Context())
	defer stop()
	var s settings
	s.conf.KillPoint = func(p string) {
		if p == point {
			stop()
		}
	}
	e := b.open(s)
	defer e.shut(b.t)
	_, err := e.Recover(ctx, "j", driver.Datasets(func(d string) bool { return d == dataset }))
	require.ErrorIs(b.t, err, context.Canceled)
}

// A record that a newer program wrote is refused with both numbers and left
// alone; a newer store is not opened at all.
func TestCaseC25NewerFormatIsRefused(t *testing.T) {
	t.Parallel()
	b := three(t)
	require.Equal(t, 1, rewrite(t, b.db(), "live", func(k, r []byte) []byte {
		if bytes.Contains(k, []byte("victim")) {
			return commitstep.SealVersion(commitstep.RecordHeader, commitstep.FormatVersion+1, k, r[8:])
		}
		return nil
	}))
	e := b.open(settings{})
	q, err := e.store.Quarantine(t.Context())
	require.NoError(t, err)
	require.Len(t, q, 1)
	require.Contains(t, q[0].Problem, fmt.Sprint(commitstep.FormatVersion+1))
	require.Contains(t, q[0].Problem, fmt.Sprint("up to ", commitstep.FormatVersion))
	e.shut(t)
	b.checkQuarantined("victim", true)

	b = three(t)
	before, err := os.ReadFile(b.db())
	require.NoError(t, err)
	db, err := bbolt.Open(b.db(), 0o600, nil)
	require.NoError(t, err)
	require.NoError(t, db.Update(func(tx *bbolt.Tx) error {
		m := tx.Bucket([]byte("meta"))
		raw := m.Get([]byte("store"))
		newer := bytes.Replace(raw[8:], []byte(`"format":1`), []byte(`"format":3`), 1)
		require.NotEqual(t, raw[8:], newer)
		return m.Put([]byte("store"), commitstep.Seal(commitstep.RecordMeta, []byte("store"), newer))
	}))
	require.NoError(t, db.Close())
	_, err = boltstore.Open(b.db(), nil)
	require.ErrorIs(t, err, commitstep.ErrNewerFormat)
	require.Contains(t, err.Error(), "format 3")
	require.Contains(t, err.Error(), "up to 2")
	// An older program changes nothing: the newer one still finds its work.
	require.NoError(t, os.WriteFile(b.db(), before, 0o600))
	res, _ := b.recover("victim", settings{})
	require.Equal(t, driver.StatusCompleted, res.Status)
}

// A step of a newer version, or of a kind that this program does not have, is
// left pending, counted as nothing, and the others go on; the right program
// finishes it.
func TestUnknownKindIsLeftPending(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	own := kindOf("acme.notify", &scripted{
		verify:  func(*commitstep.Attempt) (commitstep.Verdict, error) { return commitstep.IsDone("notified"), nil },
		execute: func(context.Context, *commitstep.Attempt) error { return nil },
	})
	b.put("in-alpha", "alpha")
	b.put("in-own", "own")
	b.publishUntil("put.after", commitstep.NewPlan("j", "own").Step(fsrename.Move("in-own", "out/own")).Then(specOf("acme.notify")), settings{kinds: []commitstep.Kind{own}})
	b.promise(b.move("alpha", "in-alpha", "out/alpha"))
	for range 5 {
		res, free := b.recover("own", settings{})
		require.Equal(t, driver.StatusUnsupported, res.Status)
		require.False(t, free)
		require.Contains(t, res.Message, "acme.notify")
	}
	require.Equal(t, "alpha", b.get("out/alpha"))
	res, free := b.recover("own", settings{kinds: []commitstep.Kind{own}})
	require.Equal(t, driver.StatusCompleted, res.Status)
	require.True(t, free)
	require.Equal(t, "own", b.get("out/own"))
}
