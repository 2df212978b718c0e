package integration_test

import (
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
