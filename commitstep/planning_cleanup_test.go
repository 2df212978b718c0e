package commitstep

import (
	"strings"
	"testing"

	"github.com/google/uuid"
)

func TestCleanupPathsAndDestinationsStayApart(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, destination string
		use               PathUse
		cleanups          []string
		refused           string // in the last one's error; "" is accepted
	}{
		{"elsewhere", "/out/a", DestinationFile, []string{"/staging/run"}, ""},
		{"next to it", "/data/run-1.out", DestinationFile, []string{"/data/run-1"}, ""},
		{"the destination", "/out/a", DestinationFile, []string{"/out/a"}, "is a destination"},
		{"above the destination", "/out/a/b", DestinationFile, []string{"/out"}, "lies inside it"},
		{"the root", "/out/a/b", DestinationFile, []string{"/"}, "lies inside it"},
		{"below a destination tree", "/out/a", DestinationTree, []string{"/out/a/b/c"}, "inside the destination /out/a"},
		{"twice", "/out/a", DestinationFile, []string{"/s", "/s"}, "twice"},
		{"inside another", "/out/a", DestinationFile, []string{"/s", "/s/t/u"}, "inside /s"},
		{"around another", "/out/a", DestinationFile, []string{"/s/t/u", "/s"}, "another cleanup path lies inside"},
		{"side by side", "/out/a", DestinationFile, []string{"/s/a", "/s/b"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p, err := NewPlanning(uuid.New(), Key{Job: "j", Dataset: "d"}, nil)
			if err != nil {
				t.Fatal(err)
			}
			pr := p.For(Step{Kind: "test"})
			if err := pr.Claim(Address{LocalResource, c.destination}, c.use); err != nil {
				t.Fatal(err)
			}
			for i, path := range c.cleanups {
				err := pr.Claim(Address{LocalResource, path}, CleanupTree)
				switch last := i == len(c.cleanups)-1; {
				case last && c.refused != "":
					if err == nil || !strings.Contains(err.Error(), c.refused) {
						t.Fatalf("got %v, want a refusal with %q", err, c.refused)
					}
				case err != nil:
					t.Fatal(err)
				}
			}
		})
	}
}
