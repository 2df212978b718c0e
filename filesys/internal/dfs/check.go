package dfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
	"golang.org/x/sync/errgroup"
)

var _ filesys.PlanChecker = (*Files)(nil)

// CheckMove looks for what the name node would refuse: a move into or out of an
// encryption zone, a directory that has snapshots, directories that this user
// may not change, and a quota that is used up, of the directories that are
// configured to have one. Snapshots further inside a directory, and other
// quotas, it tells only when asked to rename. See [filesys.PlanChecker].
func (f *Files) CheckMove(ctx context.Context, from, to commitstep.Address) error {
	for _, a := range []commitstep.Address{from, to} {
		if err := f.check(a); err != nil {
			return err
		}
	}
	var src, dst, dir Status // dir is the source's
	var above string
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		if src, err = f.t.Stat(gctx, from.Path); err != nil {
			err = fmt.Errorf("stat %s: %w", from, err)
		}
		return err
	})
	g.Go(func() error {
		up := from.Dir()
		var err error
		if dir, err = f.t.Stat(gctx, up.Path); err != nil {
			return fmt.Errorf("stat %s: %w", up, err)
		}
		return f.mayChange(gctx, up.Path, dir)
	})
	g.Go(func() (err error) {
		if above, dst, err = f.nearest(gctx, path.Dir(to.Path)); err != nil {
			return fmt.Errorf("stat above %s: %w", to, err)
		}
		return f.mayChange(gctx, above, dst)
	})
	if err := g.Wait(); err != nil {
		return err
	}
	if err := f.checkSticky(ctx, from, src, dir); err != nil {
		return err
	}
	if !dst.Dir {
		return fmt.Errorf("%s/%s is a file: %w", f.resource, strings.TrimPrefix(above, "/"), filesys.ErrNotDirectory)
	}
	if err := f.checkQuotas(ctx, from, to, above, src); err != nil {
		return err
	}
	if src.Dir && src.Snapshots {
		snaps, err := f.t.Page(ctx, strings.TrimSuffix(from.Path, "/")+"/.snapshot", "")
		if err != nil {
			return fmt.Errorf("snapshots of %s: %w", from, err)
		}
		if len(snaps.Entries) > 0 {
			return commitstep.Permanent(fmt.Errorf("%s has %d snapshots (%s is one), and such a directory cannot be moved: delete them, or publish what is in it", from, len(snaps.Entries), snaps.Entries[0].Name))
		}
	}
	return f.checkZones(ctx, from, to, above, src, dst)
}

func (f *Files) checkZones(ctx context.Context, from, to commitstep.Address, above string, src, dst Status) error {
	if !src.Encrypted && !dst.Encrypted {
		return nil
	}
	srcZone, err := f.zone(ctx, from.Path, src)
	if err != nil {
		return err
	}
	if srcZone == from.Path {
		// A zone is moved as a whole, as any directory.
		if srcZone, err = f.zoneAbove(ctx, from.Path); err != nil {
			return err
		}
	}
	dstZone, err := f.zone(ctx, above, dst)
	if err != nil {
		return err
	}
	if srcZone != dstZone {
		return commitstep.Permanent(fmt.Errorf("%s is in %s, %s in %s: %w", from, zoneName(srcZone), to, zoneName(dstZone), filesys.ErrOtherFileSystem))
	}
	return nil
}

// mayChange refuses a directory in which this user may not move anything. The
// owner of a directory that lets its owner do it need not be asked about; of
// others only the name node knows.
func (f *Files) mayChange(ctx context.Context, dir string, s Status) error {
	if !s.Dir || f.user != "" && s.Owner == f.user && s.Mode>>6&uint16(Enter) == uint16(Enter) {
		return nil
	}
	if err := f.t.CheckAccess(ctx, dir, Enter); err != nil {
		return fmt.Errorf("write to %s%s: %w", f.resource, dir, err)
	}
	return nil
}

// checkSticky refuses what lies in a directory whose sticky bit keeps this user
// from moving it. A question about access does not see that bit. It tells
// whether somebody is a superuser, though, who may everything, unless everybody
// may do everything with what is asked about; then the rename has to tell.
func (f *Files) checkSticky(ctx context.Context, from commitstep.Address, src, dir Status) error {
	const sticky, everything = 0o1000, Access(0o7)
	if dir.Mode&sticky == 0 || f.user == "" || dir.Owner == f.user || src.Owner == f.user {
		return nil
	}
	err := f.t.CheckAccess(ctx, from.Path, everything)
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%s belongs to %s, and the sticky bit of its directory lets only that user, the directory's owner %s or a superuser move it: %w", from, src.Owner, dir.Owner, fs.ErrPermission)
	}
	return err
}

// checkQuotas refuses a move into a directory whose quota has no room for even
// one such file. Only configured directories are asked about: of one that has
// no quota the name node counts the whole tree. The rest it tells at the rename.
func (f *Files) checkQuotas(ctx context.Context, from, to commitstep.Address, above string, src Status) error {
	for _, d := range f.quotaDirs {
		dir := commitstep.Address{Resource: f.resource, Path: d}
		if !dir.Contains(to) || !(d == above || dir.Contains(commitstep.Address{Resource: f.resource, Path: above})) {
			continue // not in it, or it is not there yet
		}
		q, err := f.t.Quota(ctx, d)
		if err != nil {
			return fmt.Errorf("quota of %s: %w", dir, err)
		}
		// Directories that the move has to make, and what comes from elsewhere.
		names := int64(strings.Count(strings.TrimPrefix(path.Dir(to.Path), strings.TrimSuffix(above, "/")), "/"))
		var space int64
		if !dir.Contains(from) {
			names++
			space = src.Length // at least one replica
		}
		if q.MaxNames >= 0 && q.Names+names > q.MaxNames {
			return commitstep.Permanent(fmt.Errorf("%s holds %d names of %d, and %d more are needed: %w", dir, q.Names, q.MaxNames, names, filesys.ErrQuota))
		}
		if q.MaxSpace >= 0 && q.Space+space > q.MaxSpace {
			return commitstep.Permanent(fmt.Errorf("%s holds %d bytes of %d, and at least %d more are needed: %w", dir, q.Space, q.MaxSpace, space, filesys.ErrQuota))
		}
	}
	return nil
}

func zoneName(zone string) string {
	if zone == "" {
		return "no encryption zone"
	}
	return "the encryption zone " + zone
}

// nearest is the first directory at or above p that exists.
func (f *Files) nearest(ctx context.Context, p string) (string, Status, error) {
	for {
		s, err := f.t.Stat(ctx, p)
		if !filesys.Missing(err) || p == "/" {
			return p, s, err
		}
		p = path.Dir(p)
	}
}

// zone is the path of the encryption zone that p is in, "" for none. Zones
// inside zones are taken for the outer one; the name node refuses those moves
// itself.
func (f *Files) zone(ctx context.Context, p string, s Status) (string, error) {
	if !s.Encrypted {
		return "", nil
	}
	for p != "/" {
		up, err := f.t.Stat(ctx, path.Dir(p))
		if err != nil {
			return "", fmt.Errorf("stat %s: %w", path.Dir(p), err)
		}
		if !up.Encrypted {
			return p, nil
		}
		p = path.Dir(p)
	}
	return p, nil
}

func (f *Files) zoneAbove(ctx context.Context, p string) (string, error) {
	up := path.Dir(p)
	s, err := f.t.Stat(ctx, up)
	if err != nil {
		return "", fmt.Errorf("stat %s: %w", up, err)
	}
	return f.zone(ctx, up, s)
}
