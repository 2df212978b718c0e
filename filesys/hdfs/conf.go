package hdfs

import (
	"fmt"

	"github.com/commitstep/engine/filesys/internal/dfs"
)

// FromConf gives Options for one name service of the Hadoop configuration
// files in dir, under the name of that service. Name nodes of other services
// in the same files are left out: they have files of the same paths.
func FromConf(dir, service string) (Options, error) {
	s, err := dfs.ReadConf(dir, service)
	if err != nil {
		return Options{}, err
	}
	if s.Kerberos {
		return Options{}, fmt.Errorf("hadoop configuration in %s: the cluster wants Kerberos; make the options yourself, with a Client function that has the credentials", dir)
	}
	o := Options{Name: service, Addresses: s.RPC}
	if !s.TLS {
		o.HTTPAddresses = s.Web
	}
	return o, nil
}

// Services names the name services in the Hadoop configuration files in dir.
func Services(dir string) ([]string, error) { return dfs.ConfServices(dir) }
