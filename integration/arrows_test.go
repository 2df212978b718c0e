package integration_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/commitstep/engine"

// goPackage is what `go list` says of a package, without its tests.
type goPackage struct {
	ImportPath string
	Standard   bool
	Imports    []string
	Deps       []string // all imports, direct or not
}

// layers from the top. A package imports what lies below it, and packages under
// its own first directory; what shares its layer is none of its business.
var layers = [][]string{
	{"cmd"},
	{"cli"},
	{"server", "ingest"},
	{"driver", "ledger", "relay", "loadlog"},
	{"steps", "store"},
	{"filesys", "internal"},
	{"commitstep"},
}

// users stand outside: they may import everything, and nothing imports them.
var users = []string{"bench", "integration", "examples"}

// kits are for tests, of the engine and of its users.
var kits = []string{"steps/steptest", "store/storetest", "filesys/fstest", "internal/testkit", "internal/hadoopkit", "internal/hivekit", "internal/hs2/hs2test"}

// outsiders belong to programs, not to libraries: what a user embeds must not
// bring a command line, metrics or tracing along.
var outsiders = []string{"github.com/spf13/", "github.com/urfave/cli", "github.com/prometheus/", "github.com/VictoriaMetrics/", "go.opentelemetry.io/", "go.opencensus.io/", "github.com/DataDog/"}

// programs are the packages that may have them.
var programs = []string{"cmd", "cli", "server", "bench", "integration", "examples"}

func within(dir string, dirs []string) bool {
	return slices.ContainsFunc(dirs, func(d string) bool { return dir == d || strings.HasPrefix(dir, d+"/") })
}

// dirOf is a package's directory in the module; ok is false for foreign ones.
func dirOf(importPath string) (string, bool) {
	return strings.CutPrefix(importPath, module+"/")
}

// first is the directory's top level.
func first(dir string) string {
	top, _, _ := strings.Cut(dir, "/")
	return top
}

func layerOf(dir string) int {
	return slices.IndexFunc(layers, func(l []string) bool { return within(dir, l) })
}

// arrows lists every import that the layout forbids.
func arrows(pkgs []goPackage) []string {
	standard := map[string]bool{}
	for _, p := range pkgs {
		standard[p.ImportPath] = p.Standard
	}
	var bad []string
	complain := func(format string, a ...any) { bad = append(bad, fmt.Sprintf(format, a...)) }
	for _, p := range pkgs {
		dir, ours := dirOf(p.ImportPath)
		if !ours {
			continue
		}
		user, kit := within(dir, users), within(dir, kits)
		if !user && layerOf(dir) < 0 {
			complain("%s has no layer; give it one here and in docs/architecture.md", dir)
		}
		for _, imp := range p.Imports {
			to, oursToo := dirOf(imp)
			switch {
			// Not of its dependencies: Thrift's library has a logger for tests.
			case imp == "testing" && !user && !kit:
				complain("%s imports package testing", dir)
			case !oursToo:
			case user && first(dir) == first(to): // benchmarks share how they are printed
			case within(to, users):
				complain("%s imports %s, which only uses the engine", dir, to)
			case user:
			case within(to, kits) && !kit:
				complain("%s imports the test kit %s", dir, to)
			case first(dir) == first(to):
			case layerOf(to) <= layerOf(dir):
				complain("%s imports %s, which does not lie below it", dir, to)
			}
		}
		for _, dep := range p.Deps {
			to, oursToo := dirOf(dep)
			switch {
			case dir == "commitstep" && !standard[dep] && dep != "github.com/google/uuid":
				complain("%s depends on %s; the vocabulary has only the standard library and UUIDs", dir, dep)
			case within(dir, []string{"driver"}) && oursToo && (within(to, []string{"steps", "filesys"}) || strings.HasPrefix(to, "store/")):
				complain("%s depends on %s; the driver knows kinds and stores by their contracts only", dir, to)
			case within(dir, []string{"steps"}) && oursToo && strings.HasPrefix(to, "store/"):
				complain("%s depends on %s; a step knows no store implementation", dir, to)
			case !within(dir, programs) && slices.ContainsFunc(outsiders, func(o string) bool { return strings.HasPrefix(dep, o) }):
				complain("%s depends on %s, which belongs to programs", dir, dep)
			}
		}
	}
	slices.Sort(bad)
	return slices.Compact(bad)
}

func TestImportArrows(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-json=ImportPath,Standard,Imports,Deps", "./...")
	cmd.Dir = ".."
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, &stderr)
	}
	var pkgs []goPackage
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
	// An empty or partial list would hold every rule.
	for _, dir := range []string{"commitstep", "store", "store/boltstore", "filesys/local", "steps/fsrename", "steps/watermark", "driver", "cli", "cmd/commitstep"} {
		if !slices.ContainsFunc(pkgs, func(p goPackage) bool { return p.ImportPath == module+"/"+dir }) {
			t.Errorf("go list does not know %s", dir)
		}
	}
	for _, b := range arrows(pkgs) {
		t.Error(b)
	}
}

// Each rule is shown one graph that breaks it, and one that does not.
func TestArrowRules(t *testing.T) {
	t.Parallel()
	pkg := func(dir string, deps ...string) goPackage {
		for i, d := range deps {
			if rest, ok := strings.CutPrefix(d, "./"); ok {
				deps[i] = module + "/" + rest
			}
		}
		return goPackage{ImportPath: module + "/" + dir, Imports: deps, Deps: deps}
	}
	std := goPackage{ImportPath: "fmt", Standard: true}
	for _, c := range []struct {
		p    goPackage
		says string // "" is allowed
	}{
		{pkg("cmd/commitstep", "./cli", "fmt"), ""},
		{pkg("cli", "./driver", "./store/boltstore", "./filesys/local", "github.com/spf13/cobra"), ""},
		{pkg("cli/sub", "./cli"), ""},
		{pkg("driver", "./store", "./commitstep", "golang.org/x/sync/errgroup"), ""},
		{pkg("steps/watermark", "./commitstep", "./filesys"), ""},
		{pkg("store/boltstore", "./store", "./internal/batch", "go.etcd.io/bbolt"), ""},
		{pkg("steps/steptest", "./commitstep", "testing"), ""},
		{pkg("store/storetest", "./store", "./internal/testkit", "testing"), ""},
		{pkg("integration", "./cli", "./internal/testkit", "./store/boltstore", "testing"), ""},
		{pkg("commitstep", "fmt", "github.com/google/uuid"), ""},
		{pkg("commitstep", "golang.org/x/sys/unix"), "only the standard library"},
		{pkg("commitstep", "./filesys"), "does not lie below it"},
		{pkg("cli", "./cmd/commitstep"), "does not lie below it"},
		{pkg("driver", "./cli"), "does not lie below it"},
		{pkg("driver", "./ledger"), "does not lie below it"},
		{pkg("store", "./driver"), "does not lie below it"},
		{pkg("steps/fsrename", "./store"), "does not lie below it"},
		{pkg("filesys/local", "./steps/fsrename"), "does not lie below it"},
		{pkg("filesys", "./internal/batch"), "does not lie below it"},
		{pkg("driver", "./steps/fsrename"), "by their contracts only"},
		{pkg("driver", "./store/boltstore"), "by their contracts only"},
		{pkg("driver/sub", "./filesys/local"), "by their contracts only"},
		{pkg("steps/watermark", "./store/boltstore"), "knows no store implementation"},
		{pkg("store/boltstore", "github.com/spf13/pflag"), "belongs to programs"},
		{pkg("driver", "go.opentelemetry.io/otel/trace"), "belongs to programs"},
		{pkg("ledger", "github.com/prometheus/client_golang/prometheus"), "belongs to programs"},
		{pkg("driver", "testing"), "package testing"},
		{pkg("driver", "./internal/testkit"), "test kit"},
		{pkg("cli", "./bench"), "only uses the engine"},
		{pkg("bench/hive", "./bench/figures"), ""},
		{pkg("bench", "./integration/hive"), "only uses the engine"},
		{pkg("newthing", "fmt"), "has no layer"},
	} {
		got := strings.Join(arrows([]goPackage{std, c.p}), "; ")
		if c.says == "" && got != "" || !strings.Contains(got, c.says) {
			t.Errorf("%s importing %v: %q, want %q", c.p.ImportPath, c.p.Imports, got, c.says)
		}
	}
}
