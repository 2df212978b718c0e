package cli

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/commitstep/engine/store/boltstore"
)

// storeScheme opens and makes the stores of one URL scheme. A further kind of
// store is one more line in storeSchemes.
type storeScheme struct {
	name string
	open func(ctx context.Context, rest string) (store.Full, error)
	init func(ctx context.Context, rest string) (store.Full, error)
	// absolute makes rest mean the same from every working directory.
	absolute func(rest string) (string, error)
}

func storeSchemes() []storeScheme {
	return []storeScheme{{
		name:     "bolt",
		absolute: filepath.Abs,
		open: func(_ context.Context, path string) (store.Full, error) {
			st, err := boltstore.Open(path, nil)
			if err != nil {
				return nil, err
			}
			return st, nil
		},
		init: func(_ context.Context, path string) (store.Full, error) {
			st, err := boltstore.Init(path, nil)
			if err != nil {
				return nil, err
			}
			return st, nil
		},
	}}
}

// locate finds out which store is meant: the flag, the environment, or the
// default place.
func (in *invocation) locate() (scheme storeScheme, rest, location string, err error) {
	location = in.location
	source := "--store"
	if location == "" {
		location, source = in.Env("COMMITSTEP_STORE"), "COMMITSTEP_STORE"
	}
	if location == "" {
		dir := in.Env("XDG_STATE_HOME")
		// The base directory rules say that a relative one is not valid.
		if !filepath.IsAbs(dir) {
			home := in.Env("HOME")
			if !filepath.IsAbs(home) {
				return scheme, "", "", usagef("no store is named and there is no HOME; give --store bolt:PATH")
			}
			dir = filepath.Join(home, ".local", "state")
		}
		location = "bolt:" + filepath.Join(dir, "commitstep", "commit.db")
	}
	word, rest, found := strings.Cut(location, ":")
	if !found || strings.ContainsRune(word, '/') {
		return scheme, "", "", usagef("%s %q does not say what kind of store it is; write bolt:%s", source, location, location)
	}
	var known []string
	for _, s := range storeSchemes() {
		if s.name == word {
			if rest == "" {
				return scheme, "", "", usagef("%s %q names no place; write %s:PATH", source, location, word)
			}
			abs, err := s.absolute(rest)
			if err != nil {
				return scheme, "", "", failf("give an absolute path", "store %q: %v", location, err)
			}
			return s, abs, word + ":" + abs, nil
		}
		known = append(known, s.name)
	}
	return scheme, "", "", usagef("%s: stores of kind %q are unknown; there are: %s", source, word, strings.Join(known, ", "))
}

// storeErr is a store that could not be opened.
func storeErr(location string, err error) error {
	out := outcome{failed: true, unreachable: true}
	if errors.Is(err, boltstore.ErrLocked) {
		out = outcome{failed: true, locked: true}
	}
	hint := ""
	if errors.Is(err, fs.ErrPermission) {
		hint = "run as the user that the job runs as"
	}
	return &cliError{out: out, err: err, hint: hint, msg: "cannot use " + location}
}

// mergeKinds are the built-in kinds with the program's own on top.
func mergeKinds(builtin, own []commitstep.Kind) (*commitstep.Registry, error) {
	var all []commitstep.Kind
	for _, k := range own {
		if k.Name == "" || k.Version < 1 || k.New == nil {
			return nil, failf("this is a mistake of the program", "a step kind is incomplete: name %q, version %d", k.Name, k.Version)
		}
		if slices.ContainsFunc(all, func(o commitstep.Kind) bool { return o.Name == k.Name }) {
			return nil, failf("this is a mistake of the program", "two step kinds are named %q", k.Name)
		}
		all = append(all, k)
	}
	for _, k := range builtin {
		if !slices.ContainsFunc(own, func(o commitstep.Kind) bool { return o.Name == k.Name }) {
			all = append(all, k)
		}
	}
	return commitstep.NewRegistry(all...), nil
}
