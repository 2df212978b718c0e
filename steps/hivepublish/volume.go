package hivepublish

import (
	"context"
	"fmt"
	"net/url"
	"path"
	"strings"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
)

// location is a place as Hive names it, in one form: Hive writes file:///a as
// file:/a and takes both.
type location struct {
	scheme, host, path string
}

func (l location) String() string {
	return l.scheme + "://" + l.host + l.path
}

// within reports whether l is dir or lies below it.
func (l location) within(dir location) bool {
	return l.scheme == dir.scheme && l.host == dir.host && (l.path == dir.path || strings.HasPrefix(l.path, strings.TrimSuffix(dir.path, "/")+"/"))
}

// join is a place below l.
func (l location) join(elem ...string) location {
	l.path = path.Join(append([]string{l.path}, elem...)...)
	return l
}

// base is the last part of l.
func (l location) base() string { return path.Base(l.path) }

// parseLocation reads a location of a plan or of Hive. One without a scheme is
// refused: which file system it is on depends on the server's configuration.
func parseLocation(text string) (location, error) {
	scheme, rest, ok := strings.Cut(text, ":")
	if !ok || scheme == "" || strings.ContainsAny(scheme, "/ ") || !strings.HasPrefix(rest, "/") {
		return location{}, fmt.Errorf("location %q has no scheme; write it as Hive shows it, hdfs://host:8020/path", text)
	}
	l := location{scheme: strings.ToLower(scheme), path: rest}
	if after, ok := strings.CutPrefix(rest, "//"); ok {
		host, p, _ := strings.Cut(after, "/")
		l.host, l.path = strings.ToLower(host), "/"+p
	}
	switch {
	case strings.Contains(l.host, "@"):
		return location{}, fmt.Errorf("location on host %q carries a user or a password", l.host[strings.LastIndex(l.host, "@")+1:])
	case strings.ContainsFunc(l.path, func(r rune) bool { return r < 0x20 || r == 0x7f }):
		return location{}, fmt.Errorf("location %q holds control characters", text)
	}
	l.path = path.Clean(l.path)
	return l, nil
}

// settable is an error where Hive refuses to let a partition lie at a location: it
// reads it as a URI as it stands, and one that is percent-encoded for it names another
// directory.
func settable(text string) error {
	bad := strings.IndexFunc(text, func(r rune) bool { return r <= ' ' || r == 0x7f || strings.ContainsRune("\"<>\\^`{|}[]", r) })
	if bad < 0 {
		return nil
	}
	return fmt.Errorf("location %s: Hive takes none with %q in it", text, text[bad:bad+1])
}

// same reports whether a location that Hive shows is ours.
func (l location) same(shown string) bool {
	o, err := parseLocation(shown)
	return err == nil && o == l
}

// Overlap reports whether one of two locations lies in the other, or may: one that
// cannot be read is taken to.
func Overlap(a, b string) bool {
	x, err := parseLocation(a)
	y, yerr := parseLocation(b)
	return err != nil || yerr != nil || x.within(y) || y.within(x)
}

// volume is a bound part of the warehouse.
type volume struct {
	at    location
	files filesys.FS
	root  commitstep.Address
}

func newVolume(v Volume) (volume, error) {
	at, err := parseLocation(withPath(v.URI))
	if err != nil {
		return volume{}, fmt.Errorf("volume: %w", err)
	}
	if v.Files == nil {
		return volume{}, fmt.Errorf("volume %s has no file system", v.URI)
	}
	root := v.At
	if root == (commitstep.Address{}) {
		root = commitstep.Address{Resource: v.Files.Resource(), Path: "/"}
	}
	if root.Resource != v.Files.Resource() {
		return volume{}, fmt.Errorf("volume %s: %s is no address of %s", v.URI, root, v.Files.Resource())
	}
	return volume{at: at, files: v.Files, root: root}, nil
}

// withPath completes hdfs://host to hdfs://host/.
func withPath(uri string) string {
	if u, err := url.Parse(uri); err == nil && u.Path == "" && u.Host != "" {
		return uri + "/"
	}
	return uri
}

// volumeHint says what to write instead of a location that is bound nowhere.
func (s *Server) volumeHint() string {
	if len(s.volumes) == 0 {
		return fmt.Sprintf("bind the part of the warehouse as a volume of the hive server %q (`warehouse` in the configuration)", s.name)
	}
	known := make([]string, len(s.volumes))
	for i, v := range s.volumes {
		known[i] = v.at.String()
	}
	return fmt.Sprintf("write it as Hive shows it, which on %q begins with %s, or bind that part of the warehouse as a volume too", s.name, strings.Join(known, " or "))
}

// place is a location in a bound file system.
type place struct {
	files filesys.FS
	at    commitstep.Address
}

// place finds the file system of a location. ok is false when none is bound.
func (s *Server) place(l location) (p place, ok bool) {
	best := -1
	for _, v := range s.volumes {
		if l.within(v.at) && len(v.at.path) > best {
			best = len(v.at.path)
			rest := strings.TrimPrefix(l.path, v.at.path)
			p = place{v.files, commitstep.Address{Resource: v.root.Resource, Path: path.Join(v.root.Path, rest)}}
		}
	}
	return p, best >= 0
}

// staged is what the evidence says of the rows' own place: that of the table named
// by `stage`, and more. It is none where the plan does not name it, or it cannot be
// told: one place that is missing is as bad as all.
func (s *Server) staged(ctx context.Context, stage string, more ...location) ([]string, error) {
	t, err := Target{Table: stage}.check()
	if err != nil || stage == "" || !strings.Contains(stage, ".") && s.cfg.Session["use:database"] != "" {
		return nil, nil
	}
	d, err := s.describeTable(ctx, t)
	if transport(err) || ctx.Err() != nil {
		return nil, err
	}
	l, lerr := parseLocation(d.location)
	if err != nil || lerr != nil {
		return nil, nil // a view, or made by an earlier step
	}
	return s.addresses(append([]location{l}, more...)...), nil
}

// addresses are those of places, none where one has no file system.
func (s *Server) addresses(places ...location) []string {
	var out []string
	for _, l := range places {
		p, ok := s.place(l)
		if !ok {
			return nil
		}
		out = append(out, p.at.String())
	}
	return out
}

// isDir looks whether the location is a directory.
func (s *Server) isDir(ctx context.Context, l location) (bool, error) {
	p, ok := s.place(l)
	if !ok {
		return false, fmt.Errorf("no file system is bound for %s", l)
	}
	info, err := p.files.Stat(ctx, p.at)
	switch {
	case filesys.Missing(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look at %s: %w", l, err)
	}
	return info.Dir, nil
}
