package webhdfs

import (
	"errors"
	"fmt"

	"github.com/commitstep/engine/filesys/internal/dfs"
)

// ErrNoWebServers: the configuration files do not say where the web servers are.
var ErrNoWebServers = errors.New("the web servers of all its name nodes are not given (dfs.namenode.http-address)")

// FromConf gives Options for one name service of the Hadoop configuration
// files in dir, under the name of that service.
func FromConf(dir, service string) (Options, error) {
	s, err := dfs.ReadConf(dir, service)
	if err != nil {
		return Options{}, err
	}
	if len(s.Web) == 0 {
		return Options{}, fmt.Errorf("hadoop configuration in %s: %q: %w", dir, service, ErrNoWebServers)
	}
	if s.Kerberos {
		return Options{}, fmt.Errorf("hadoop configuration in %s: the cluster wants Kerberos; configure the URLs with a delegation token, or make the options yourself, with a Transport that authenticates", dir)
	}
	return Options{Name: service, URLs: s.URLs()}, nil
}
