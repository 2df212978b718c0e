package integration_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/steps/fsrename"
	"github.com/commitstep/engine/steps/watermark"
	"github.com/hamba/avro/v2/ocf"
	"github.com/stretchr/testify/require"
)

// layout is what one run stages and asks for. It is derived from a text alone,
// so that a parent and its children speak of the same plan.
type layout struct {
	job, dataset string
	planID       string
	locks        []string
	stages       [][]move
	marks        []markMove
	cleanup      []commitstep.CleanupParams
	strays       []stagedFile // staged by nobody's step
	emptyDirs    []string
	slots        int // steps of one stage at once
}

// move is one fs.rename step: a file, or a directory of files.
type move struct {
	from, to string
	dir      bool
	files    []stagedFile // paths are relative to from for a directory
	mode     string
	owner    string
}

type stagedFile struct {
	path    string
	records []record
}

type markMove struct {
	stage    int // of the watermark stages
	source   string
	from, to commitstep.Watermark
}

type record struct {
	Partition int    `avro:"partition"`
	Offset    int64  `avro:"offset"`
	Key       string `avro:"key"`
	Value     string `avro:"value"`
	Time      int64  `avro:"timestamp"`
}

const schema = `{"type":"record","name":"Event","namespace":"quickstart","fields":[
	{"name":"partition","type":"int"},{"name":"offset","type":"long"},{"name":"key","type":"string"},
	{"name":"value","type":"string"},{"name":"timestamp","type":"long"}]}`

// numbers gives every record of a layout a place of its own.
type numbers struct{ next map[int]int64 }

func (n *numbers) take(partition, count int) []record {
	if n.next == nil {
		n.next = map[int]int64{}
	}
	out := make([]record, count)
	for i := range out {
		o := n.next[partition]
		n.next[partition]++
		out[i] = record{partition, o, fmt.Sprintf("key-%d-%d", partition, o), fmt.Sprintf("value %d of %d", o, partition), 1449619200000 + o}
	}
	return out
}

// layoutOf reads "mytopic", "shared", "random:SEED" or "long:SEED".
func layoutOf(text string) layout {
	name, arg, _ := strings.Cut(text, ":")
	seed, _ := strconv.ParseUint(arg, 10, 64)
	switch name {
	case "mytopic":
		return myTopic()
	case "shared":
		return sharedStaging()
	case "random":
		return randomLayout(rand.New(rand.NewPCG(seed, 1)))
	case "long":
		return longLayout(rand.New(rand.NewPCG(seed, 2)))
	}
	panic("no layout " + text)
}

// myTopic is the project's quickstart: three files, two watermarks.
func myTopic() layout {
	var n numbers
	l := layout{job: "kafka-hdfs", dataset: "MyTopic", slots: 1}
	var files []move
	for i, f := range []string{"2015-12-09/1.avro", "2015-12-09/2.avro", "2015-12-10/1.avro"} {
		from := "task-output/MyTopic/" + f
		files = append(files, move{from: from, to: "job-output/MyTopic/" + f, files: []stagedFile{{from, n.take(min(i, 1), 100)}}})
	}
	l.stages = [][]move{files}
	l.marks = []markMove{
		{0, "MyTopic:0", commitstep.None(), commitstep.Int(100)},
		{0, "MyTopic:1", commitstep.None(), commitstep.Int(200)},
	}
	l.cleanup = []commitstep.CleanupParams{{Path: "task-output/MyTopic"}}
	return l
}

// sharedStaging moves files of one directory into several new ones: what
// settles the first of them syncs the directory that the others left.
func sharedStaging() layout {
	var n numbers
	l := layout{job: "shared", dataset: "staging", slots: 1}
	var files []move
	for _, f := range []string{"a", "b"} {
		from := "staging/" + f
		files = append(files, move{from: from, to: "out/" + f + "/new/" + f, files: []stagedFile{{from, n.take(0, 3)}}})
	}
	l.stages = [][]move{files}
	l.marks = []markMove{{0, "shared", commitstep.None(), commitstep.Int(6)}}
	return l
}

// oddNames are file names that careless code mangles.
var oddNames = []string{"plain", "a b", "a%20b", "100%", "x+y", "q?a=b#c", "한국어", "café", "_hidden", ".dot", "quote'\"", "back\\slash", "semi;colon", "c:d"}

func randomLayout(r *rand.Rand) layout {
	var n numbers
	l := layout{job: "job " + oddNames[r.IntN(len(oddNames))], dataset: fmt.Sprintf("set/%s:%d", oddNames[r.IntN(len(oddNames))], r.IntN(10)), slots: 1 + r.IntN(8)}
	if r.IntN(2) == 0 {
		l.planID = fmt.Sprintf("load %d", r.IntN(1000))
	}
	for i := range r.IntN(3) {
		l.locks = append(l.locks, fmt.Sprintf("table-%d", i))
	}
	staging := "staging/" + oddNames[r.IntN(len(oddNames))]
	for stage := range 1 + r.IntN(3) {
		var moves []move
		for i := range 1 + r.IntN(4) {
			name := fmt.Sprintf("%s-%d-%d", oddNames[r.IntN(len(oddNames))], stage, i)
			m := move{from: path.Join(staging, fmt.Sprintf("t%d", r.IntN(3)), name), to: path.Join("out", fmt.Sprintf("d%d", r.IntN(3)), fmt.Sprintf("d%d", r.IntN(2)), name)}
			if r.IntN(4) == 0 {
				m.dir = true
				for f := range 1 + r.IntN(4) {
					m.files = append(m.files, stagedFile{path.Join([]string{"", "sub", "sub/sub"}[r.IntN(3)], fmt.Sprintf("part %d", f)), n.take(r.IntN(3), r.IntN(5))})
				}
			} else {
				m.files = []stagedFile{{m.from, n.take(r.IntN(3), r.IntN(20))}}
			}
			if r.IntN(4) == 0 {
				m.mode = "0640"
				if m.dir {
					m.mode = "0750" // it must stay open to this user
				}
			}
			if os.Getuid() == 0 && r.IntN(4) == 0 {
				m.owner = "1234"
			}
			moves = append(moves, m)
		}
		l.stages = append(l.stages, moves)
	}
	for i := range 1 + r.IntN(3) {
		m := markMove{stage: min(i, r.IntN(2)), source: fmt.Sprintf("source:%d", i), from: commitstep.None(), to: commitstep.Int(int64(r.IntN(1000)))}
		if r.IntN(3) == 0 {
			m.to = commitstep.Text("2015-12-0" + strconv.Itoa(r.IntN(10)))
		}
		if r.IntN(3) == 0 {
			m.to = m.to.InEpoch(uint64(1 + r.IntN(3)))
		}
		if i > 0 && l.marks[i-1].stage > m.stage {
			m.stage = l.marks[i-1].stage
		}
		l.marks = append(l.marks, m)
	}
	switch r.IntN(4) {
	case 0: // nobody cleans up
	case 1:
		l.cleanup = []commitstep.CleanupParams{{Path: staging}}
	default:
		l.cleanup = []commitstep.CleanupParams{{Path: staging, Leftovers: "delete"}}
		for i := range r.IntN(4) {
			l.strays = append(l.strays, stagedFile{path.Join(staging, "t0", fmt.Sprintf("_temporary-%d", i)), nil})
		}
		for i := range r.IntN(3) {
			l.emptyDirs = append(l.emptyDirs, path.Join(staging, "t1", fmt.Sprintf("empty-%d", i)))
		}
	}
	return l
}

// longLayout fills several pages of the store.
func longLayout(r *rand.Rand) layout {
	var n numbers
	l := layout{job: "long", dataset: "many files", slots: 8}
	for stage, count := range []int{520 + r.IntN(20), 500 + r.IntN(40)} {
		var moves []move
		for i := range count {
			from := fmt.Sprintf("staging/long/s%d/%04d", stage, i)
			moves = append(moves, move{from: from, to: fmt.Sprintf("out/s%d/p%d/%04d", stage, i%7, i), files: []stagedFile{{from, n.take(stage, 1)}}})
		}
		l.stages = append(l.stages, moves)
	}
	l.marks = []markMove{{0, "long", commitstep.None(), commitstep.Int(int64(r.IntN(1000)))}}
	l.cleanup = []commitstep.CleanupParams{{Path: "staging/long"}}
	return l
}

// plan is what the job asks the engine for.
func (l layout) plan() *commitstep.Plan {
	p := commitstep.NewPlan(l.job, l.dataset).Lock(l.locks...)
	if l.planID != "" {
		p.WithID(l.planID)
	}
	for _, st := range l.stages {
		for i, m := range st {
			var opts []fsrename.Option
			if m.mode != "" {
				opts = append(opts, fsrename.Mode(m.mode))
			}
			if m.owner != "" {
				opts = append(opts, fsrename.Owner(m.owner))
			}
			spec := fsrename.Move(m.from, m.to, opts...)
			if i == 0 {
				p.Then(spec)
			} else {
				p.Step(spec)
			}
		}
	}
	for i, m := range l.marks {
		spec := watermark.Set(m.source, m.from, m.to)
		if i == 0 || m.stage != l.marks[i-1].stage {
			p.Then(spec)
		} else {
			p.Step(spec)
		}
	}
	for _, c := range l.cleanup {
		p.CleanupWith(c)
	}
	return p
}

func (l layout) key() commitstep.Key { return commitstep.Key{Job: l.job, Dataset: l.dataset} }

func (l layout) steps() int {
	n := len(l.marks)
	for _, st := range l.stages {
		n += len(st)
	}
	return n
}

// stage writes the staged files below root and returns the bytes that belong
// at every final name.
func (l layout) stage(t testing.TB, root string) map[string][]byte {
	t.Helper()
	want := map[string][]byte{}
	for _, st := range l.stages {
		for _, m := range st {
			for _, f := range m.files {
				from, to := f.path, m.to
				if m.dir {
					from, to = path.Join(m.from, f.path), path.Join(m.to, f.path)
				}
				want[to] = writeAvro(t, filepath.Join(root, from), f.records)
			}
		}
	}
	for _, s := range l.strays {
		writeAvro(t, filepath.Join(root, s.path), nil)
	}
	for _, d := range l.emptyDirs {
		require.NoError(t, os.MkdirAll(filepath.Join(root, d), 0o755))
	}
	return want
}

// records are all that the layout publishes.
func (l layout) records() map[record]bool {
	out := map[record]bool{}
	for _, st := range l.stages {
		for _, m := range st {
			for _, f := range m.files {
				for _, r := range f.records {
					out[r] = true
				}
			}
		}
	}
	return out
}

func writeAvro(t testing.TB, name string, records []record) []byte {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
	f, err := os.Create(name)
	require.NoError(t, err)
	enc, err := ocf.NewEncoder(schema, f)
	require.NoError(t, err)
	for _, r := range records {
		require.NoError(t, enc.Encode(r))
	}
	require.NoError(t, enc.Close())
	require.NoError(t, f.Close())
	// A whole second, so that every file system keeps it.
	stamp := time.Date(2015, 12, 9, 1, 2, 3, 0, time.UTC)
	require.NoError(t, os.Chtimes(name, stamp, stamp))
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	return b
}

func readAvro(t testing.TB, name string) []record {
	t.Helper()
	f, err := os.Open(name)
	require.NoError(t, err)
	defer f.Close()
	dec, err := ocf.NewDecoder(f)
	require.NoError(t, err, name)
	var out []record
	for dec.HasNext() {
		var r record
		require.NoError(t, dec.Decode(&r), name)
		out = append(out, r)
	}
	require.NoError(t, dec.Error(), name)
	return out
}
