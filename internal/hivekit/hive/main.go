// Command hive starts the HiveServer2 that the tests share.
//
//	hive up          starts one that stays, beside the Hadoop of `hadoop up`,
//	                 and tells where it is
//	hive down        stops it
//	hive run CMD...  launches one, runs CMD meanwhile, and stops it; runs inside
//	                 of `hadoop run`
package main

import (
	"fmt"
	"os"

	"github.com/commitstep/engine/internal/hadoopkit"
	"github.com/commitstep/engine/internal/hivekit"
	"github.com/commitstep/engine/internal/testkit/jvm"
)

func main() {
	os.Exit(jvm.Command{Name: "hive", What: "Hive", DirEnv: hivekit.DirEnv, Dir: hivekit.DefaultDir,
		Attach: func(dir string) (string, error) { return tell(hivekit.Attach(dir)) },
		Up:     up,
		Run:    launch,
		Down:   hivekit.StopDetached,
	}.Main(os.Args[1:]))
}

func tell(s *hivekit.Server, err error) (string, error) {
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s (%s)\n%s\nexport %s=%s", s.Address(), s.Auth, s.WebUI(), hivekit.DirEnv, s.Dir), nil
}

func up(dir string) (string, error) {
	c, err := hadoop()
	if err != nil {
		return "", err
	}
	o := hivekit.SharedOptions(c)
	o.Detached = true
	return tell(hivekit.Start(dir, o))
}

// launch does not wait: those who use it do, and meanwhile the others are
// tested.
func launch(dir string) (func(), error) {
	c, err := hadoop()
	if err != nil {
		return nil, err
	}
	s, err := hivekit.Launch(dir, hivekit.SharedOptions(c))
	if err != nil {
		return nil, err
	}
	return func() {
		s.Stop()
		_ = s.RemoveData() // of a Hadoop that may end as well
	}, nil
}

// hadoop is the one that runs already.
func hadoop() (*hadoopkit.Cluster, error) {
	dir := os.Getenv(hadoopkit.DirEnv)
	if dir == "" {
		var err error
		if dir, err = hadoopkit.DefaultDir(); err != nil {
			return nil, err
		}
	}
	return hadoopkit.Attach(dir)
}
