package webhdfs

import (
	"fmt"

	"github.com/commitstep/engine/filesys/internal/dfs"
)

// FromConf gives Options for one name service of the Hadoop configuration
// files in dir, under the name of that service.
func FromConf(dir, service string) (Options, error) {
	s, err := dfs.ReadConf(dir, service)
	if err != nil {
		return Options{}, err
	}
	if len(s.Web) == 0 {
		return Options{}, fmt.Errorf("hadoop configuration in %s: the web servers of all name nodes of %q are not given (dfs.namenode.http-address)", dir, service)
	}
	return Options{Name: service, URLs: s.URLs()}, nil
}
