//go:build !linux

package local

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/commitstep/engine/filesys"
)

// Files cannot be made on this operating system.
type Files struct{ filesys.FS }

// Option changes how Files works.
type Option func(*Files)

// New refuses: the guarantees of this package rest on Linux calls.
func New(root string, opts ...Option) (*Files, error) {
	return nil, fmt.Errorf("local files below %q: %w on %s; run on Linux", root, errors.ErrUnsupported, runtime.GOOS)
}
