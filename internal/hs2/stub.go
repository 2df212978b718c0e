package hs2

import (
	_ "github.com/apache/thrift/lib/go/thrift"
	_ "github.com/beltran/gohive/hiveserver"
)
