package dfs

import (
	"context"
	"fmt"
	"path"
	"strings"

	"github.com/commitstep/engine/commitstep"
	"github.com/commitstep/engine/filesys"
	"golang.org/x/sync/errgroup"
)

var _ filesys.PlanChecker = (*Files)(nil)

// CheckMove looks for what the name node would refuse for ever: a move into or
// out of an encryption zone, and a directory that has snapshots. Quotas, and
// snapshots further inside a directory, it tells only when asked to rename.
// See [filesys.PlanChecker].
func (f *Files) CheckMove(ctx context.Context, from, to commitstep.Address) error {
	for _, a := range []commitstep.Address{from, to} {
		if err := f.check(a); err != nil {
			return err
		}
	}
	var src, dst Status
	var above string
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		if src, err = f.t.Stat(gctx, from.Path); err != nil {
			err = fmt.Errorf("stat %s: %w", from, err)
		}
		return err
	})
	g.Go(func() (err error) {
		if above, dst, err = f.nearest(gctx, path.Dir(to.Path)); err != nil {
			err = fmt.Errorf("stat above %s: %w", to, err)
		}
		return err
	})
	if err := g.Wait(); err != nil {
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
