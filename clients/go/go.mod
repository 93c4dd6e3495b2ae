module weirgate

go 1.19
