// Command hadoop starts the cluster that the tests share.
//
//	hadoop up          starts one that stays, and tells where it is
//	hadoop down        stops it
//	hadoop run CMD...  starts one, runs CMD with it, and stops it
package main

import (
	"fmt"
	"os"

	"github.com/commitstep/engine/internal/hadoopkit"
	"github.com/commitstep/engine/internal/testkit/jvm"
)

func main() {
	os.Exit(jvm.Command{Name: "hadoop", What: "Hadoop", DirEnv: hadoopkit.DirEnv, Dir: hadoopkit.DefaultDir,
		Attach: func(dir string) (string, error) { return tell(hadoopkit.Attach(dir)) },
		Up: func(dir string) (string, error) {
			return tell(hadoopkit.Start(dir, hadoopkit.Options{Detached: true}))
		},
		Run: func(dir string) (func(), error) {
			c, err := hadoopkit.Start(dir, hadoopkit.Options{})
			if err != nil {
				return nil, err
			}
			return c.Stop, nil
		},
		Down: hadoopkit.StopDetached,
	}.Main(os.Args[1:]))
}

func tell(c *hadoopkit.Cluster, err error) (string, error) {
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("hdfs://%s\n%s\nexport %s=%s", c.RPC(), c.WebHDFS(), hadoopkit.DirEnv, c.Dir), nil
}
