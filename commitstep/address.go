package commitstep

import (
	"fmt"
	"path"
	"strings"
	"unicode/utf8"
)

// LocalResource is the resource name of the machine's own file system.
const LocalResource = "file"

// Address is a path in a named resource. Its text is "file:///data/x" or
// "hdfs://prod/x": the scheme, the resource's name (empty for file), and the
// path as raw bytes. Nothing is ever percent-decoded or encoded: "a%20b" and
// "a b" are two files.
type Address struct {
	// Resource is "file", or scheme and name: "hdfs://prod".
	Resource string
	// Path is absolute and clean.
	Path string
}

// String gives the text form.
func (a Address) String() string {
	if a.Resource == LocalResource {
		return "file://" + a.Path
	}
	return a.Resource + a.Path
}

// Base is the last element of the path.
func (a Address) Base() string { return path.Base(a.Path) }

// Dir is the address of the parent directory; the root is its own parent.
func (a Address) Dir() Address { return Address{a.Resource, path.Dir(a.Path)} }

// Contains reports whether b is a itself or below it.
func (a Address) Contains(b Address) bool {
	return a.Resource == b.Resource && (a.Path == b.Path || a.Path == "/" || strings.HasPrefix(b.Path, a.Path+"/"))
}

// MarshalText writes the text form.
func (a Address) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText reads the text form of a resolved address.
func (a *Address) UnmarshalText(b []byte) error {
	r, err := ParseAddress(string(b), "")
	if err != nil {
		return err
	}
	*a = r
	return nil
}

// ParseAddress resolves text as written in a plan. A relative path and an
// absolute one without a scheme belong to the local file system; a relative
// one is taken below base, which must be absolute ("" refuses relative paths).
// Dots are resolved here, so that the stored path is absolute and clean.
// Errors are *PlanError.
func ParseAddress(text, base string) (Address, error) {
	bad := func(problem, hint string) (Address, error) {
		return Address{}, &PlanError{Where: fmt.Sprintf("path %q", text), Problem: problem, Hint: hint}
	}
	switch {
	case text == "":
		return bad("is empty", "name a file or directory")
	case strings.ContainsRune(text, 0):
		return bad("holds a NUL byte", "no file can have that name")
	case !utf8.ValidString(text):
		return bad("is not valid UTF-8", "plans are UTF-8 text; rename the file")
	}
	res, p := LocalResource, text
	if i := strings.Index(text, "://"); i >= 0 && !isScheme(text[:i]) && !strings.Contains(text[:i], "/") {
		// Else HDFS://prod/x would quietly be a local path below base.
		return bad("has a malformed scheme", "write the scheme in lower case, as in hdfs://name/path; a local path that looks like one is written file:///path")
	} else if i > 0 && isScheme(text[:i]) {
		scheme, rest := text[:i], text[i+3:]
		slash := strings.IndexByte(rest, '/')
		if slash < 0 {
			return bad("has no path", "write scheme://name/path")
		}
		name := rest[:slash]
		p = rest[slash:]
		switch {
		case scheme == LocalResource && name != "":
			return bad("names a host", "local files are written file:///path")
		case scheme != LocalResource && name == "":
			return bad("names no resource", "write "+scheme+"://name/path with a configured name")
		case strings.Contains(name, "@"):
			return bad("carries a user or password", "configure credentials with the resource, not in a plan")
		case scheme != LocalResource:
			res = scheme + "://" + name
		}
	} else if !strings.HasPrefix(text, "/") {
		if base == "" {
			return bad("is relative", "write an absolute path")
		}
		p = base + "/" + text
	}
	return Address{Resource: res, Path: path.Clean(p)}, nil
}

func isScheme(s string) bool {
	for i, c := range s {
		letter := c >= 'a' && c <= 'z'
		if !letter && (i == 0 || c != '+' && c != '-' && (c < '0' || c > '9')) {
			return false
		}
	}
	return s != ""
}
