package integration_test

import (
	"golang.org/x/sys/unix"
)

// mountTmpfs needs root. The options may limit its size.
func mountTmpfs(dir string, options ...string) error {
	o := ""
	for i, s := range options {
		if i > 0 {
			o += ","
		}
		o += s
	}
	return unix.Mount("commitstep-test", dir, "tmpfs", 0, o)
}

func unmount(dir string) { _ = unix.Unmount(dir, unix.MNT_DETACH) }
