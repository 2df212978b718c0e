// Command commitstep publishes plans and recovers them after a crash.
package main

import (
	"context"
	"os"

	"github.com/commitstep/engine/cli"
)

func main() { os.Exit(cli.Run(context.Background(), os.Args[1:])) }
