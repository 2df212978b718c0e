package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/store"
	"github.com/commitstep/engine/store/boltstore"
	"github.com/commitstep/engine/store/pgstore"
)

// storeScheme opens and makes the stores of one URL scheme. A further kind of
// store is one more line in storeSchemes.
type storeScheme struct {
	name string
	open func(ctx context.Context, rest string) (store.Full, error)
	init func(ctx context.Context, rest string) (store.Full, error)
	// absolute makes rest mean the same from every working directory.
	absolute func(rest string) (string, error)
	// shown is the location in messages; nil when it can be shown as it is.
	shown func(rest string) (string, error)
	// bare: the scheme alone is a location too.
	bare bool
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
	}, postgresScheme("postgres"), postgresScheme("postgresql")}
}

// postgresScheme is a store in PostgreSQL: a URL, libpq keywords after the
// colon, or nothing, which is the libpq environment.
func postgresScheme(name string) storeScheme {
	return storeScheme{
		name:     name,
		bare:     true,
		absolute: func(rest string) (string, error) { return rest, nil },
		shown:    func(rest string) (string, error) { return pgstore.Location(postgresAddress(rest), nil) },
		open: func(ctx context.Context, rest string) (store.Full, error) {
			st, err := pgstore.Open(ctx, postgresAddress(rest), nil)
			if err != nil {
				return nil, err
			}
			return st, nil
		},
		init: func(ctx context.Context, rest string) (store.Full, error) {
			m, err := pgstore.NewMigrator(ctx, postgresAddress(rest), nil)
			if err != nil {
				return nil, err
			}
			done, err := m.Up(ctx, 0)
			if err = errors.Join(err, m.Close()); err != nil {
				return nil, err
			}
			if len(done) == 0 {
				return nil, fmt.Errorf("%w: the tables are there already", fs.ErrExist)
			}
			st, err := pgstore.Open(ctx, postgresAddress(rest), nil)
			if err != nil {
				return nil, err
			}
			return st, nil
		},
	}
}

func postgresAddress(rest string) string {
	if strings.HasPrefix(rest, "//") {
		return "postgres:" + rest
	}
	return rest
}

// locate finds out which store is meant: the flag, the environment, or the
// default place.
func (in *invocation) locate() (scheme storeScheme, rest, location string, err error) {
	scheme, rest, location, err = in.locateAs("--store", in.location)
	in.used = location
	return scheme, rest, location, err
}

// locateAs is locate for the location that was given by the named flag.
func (in *invocation) locateAs(source, location string) (scheme storeScheme, rest, shown string, err error) {
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
			if rest == "" && !s.bare {
				return scheme, "", "", usagef("%s %q names no place; write %s:PATH", source, location, word)
			}
			abs, err := s.absolute(rest)
			if err != nil {
				return scheme, "", "", failf("give an absolute path", "store %q: %v", location, err)
			}
			if s.shown != nil {
				shown, err := s.shown(abs)
				if err != nil {
					return scheme, "", "", usagef("%s: %v", source, err)
				}
				return s, abs, shown, nil
			}
			return s, abs, word + ":" + abs, nil
		}
		known = append(known, s.name)
	}
	known = slices.DeleteFunc(known, func(k string) bool { return k == "postgresql" })
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
