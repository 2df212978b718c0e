package integration_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// docs/cases.md names every case's test, and each of them exists.
func TestCasesPageIsTrue(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/cases.md")
	require.NoError(t, err)
	defined := map[string]bool{}
	decl := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	require.NoError(t, filepath.WalkDir("..", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(p, "_test.go") {
			return err
		}
		b, err := os.ReadFile(p)
		for _, m := range decl.FindAllSubmatch(b, -1) {
			defined[string(m[1])] = true
		}
		return err
	}))
	named := map[string]bool{}
	for _, name := range regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(string(page), -1) {
		named[name[1]] = true
		require.True(t, defined[name[1]], "the page names %s, which is no test", name[1])
	}
	for name := range defined {
		if strings.HasPrefix(name, "TestCaseC") {
			require.True(t, named[name], "%s is not on the page", name)
		}
	}
	require.Greater(t, len(named), 40)
}

// Every decision is in the index under its title, and the numbers have no gaps.
func TestDecisionsAreIndexed(t *testing.T) {
	t.Parallel()
	index, err := os.ReadFile("../docs/adr/README.md")
	require.NoError(t, err)
	pages, err := filepath.Glob("../docs/adr/0*.md")
	require.NoError(t, err)
	require.NotEmpty(t, pages)
	for i, p := range pages {
		b, err := os.ReadFile(p)
		require.NoError(t, err)
		number := fmt.Sprintf("%04d", i+1)
		require.True(t, strings.HasPrefix(filepath.Base(p), number), "%s leaves a gap", p)
		title, _, _ := strings.Cut(string(b), "\n")
		title, ok := strings.CutPrefix(title, "# "+number+" ")
		require.True(t, ok, "%s has the title %q", p, title)
		require.Contains(t, string(index), fmt.Sprintf("| [%s](%s) | %s |", number, filepath.Base(p), title))
	}
	require.Equal(t, len(pages), strings.Count(string(index), "| [0"))
}
