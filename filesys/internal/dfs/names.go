package dfs

import (
	"fmt"
	"path"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
)

// Resolve turns a plan's text into an address of resource, below root. Names
// that HDFS cannot hold are refused here, since its own refusal would come
// only when the plan is a promise already.
func Resolve(resource, root, text, base string) (commitstep.Address, error) {
	bad := func(problem, hint string, err error) (commitstep.Address, error) {
		return commitstep.Address{}, &commitstep.PlanError{Where: fmt.Sprintf("path %q", text), Problem: problem, Hint: hint, Err: err}
	}
	var a commitstep.Address
	if i := strings.Index(text, "://"); i >= 0 && !strings.Contains(text[:i], "/") {
		parsed, err := commitstep.ParseAddress(text, "")
		if err != nil {
			return parsed, err
		}
		if a = parsed; a.Resource != resource {
			return bad("is on "+a.Resource+", not on "+resource, "name one file system", nil)
		}
	} else {
		switch {
		case text == "":
			return bad("is empty", "name a file or directory", nil)
		case strings.ContainsRune(text, 0):
			return bad("holds a NUL byte", "no file can have that name", nil)
		case !utf8.ValidString(text):
			return bad("is not valid UTF-8", "names in HDFS are UTF-8 text", nil)
		}
		if base == "" {
			base = root
		}
		if !strings.HasPrefix(text, "/") {
			text = base + "/" + text
		}
		a = commitstep.Address{Resource: resource, Path: path.Clean(text)}
	}
	if !(commitstep.Address{Resource: resource, Path: root}).Contains(a) {
		return bad("leaves the root "+root+" of "+resource, "name a path below it", filesys.ErrEscapes)
	}
	if chars := len(utf16.Encode([]rune(a.Path))); chars > maxPath {
		return bad(fmt.Sprintf("has %d characters", chars), fmt.Sprintf("HDFS allows %d; choose a shorter path", maxPath), filesys.ErrNameTooLong)
	}
	if levels := strings.Count(a.Path, "/"); levels > maxLevels {
		return bad(fmt.Sprintf("lies %d directories deep", levels), fmt.Sprintf("HDFS allows %d; choose a shorter path", maxLevels), filesys.ErrNameTooLong)
	}
	for i, name := range strings.Split(a.Path[1:], "/") {
		switch {
		case strings.Contains(name, ":"):
			return bad(fmt.Sprintf("has the name %q with a colon", name), "HDFS allows no colon in names; choose another name", nil)
		case len(name) > maxName:
			return bad(fmt.Sprintf("has a name of %d bytes", len(name)), fmt.Sprintf("HDFS allows %d; choose a shorter name", maxName), nil)
		case name == ".snapshot":
			return bad("lies in a snapshot", "snapshots cannot be changed; name the live file", nil)
		case i == 0 && name == ".reserved":
			return bad("is a reserved path", "name a file by its path", nil)
		case strings.HasPrefix(name, privatePrefix):
			return bad(fmt.Sprintf("has the name %q", name), "such names are used while a file is removed; choose another", nil)
		}
	}
	return a, nil
}

// maxName is how long a name may be by default, in bytes.
const maxName = 255

// maxPath is how long a whole path may be, in Java's characters, and maxLevels
// how deep.
const (
	maxPath   = 8000
	maxLevels = 1000
)

// check holds that a is a resolved address of resource: what was not resolved
// could leave the root.
func (f *Files) check(a commitstep.Address) error {
	if a.Resource != f.resource || a.Path == "" || a.Path[0] != '/' || path.Clean(a.Path) != a.Path || !f.Root().Contains(a) {
		return fmt.Errorf("%s is no resolved address of %s: %w", a, f.Root(), filesys.ErrEscapes)
	}
	return nil
}
