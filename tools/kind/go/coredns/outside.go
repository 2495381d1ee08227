package main

import (
	"context"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"
)

// outside stands where kubeadm's Corefile forwards to the machine's name
// servers. The clusters of this recipe have no way out, so no name outside of
// them exists. Forwarded, a query would wait seconds for an answer, and a
// resolver asks many: "name.namespace" as it is, after every search domain.
type outside struct{}

func init() {
	plugin.Register("forward", func(c *caddy.Controller) error {
		for c.Next() {
			c.RemainingArgs()
			for c.NextBlock() {
				c.RemainingArgs()
			}
		}
		dnsserver.GetConfig(c).AddPlugin(func(plugin.Handler) plugin.Handler { return outside{} })
		return nil
	})
}

func (outside) Name() string { return "forward" }

func (outside) ServeDNS(_ context.Context, w dns.ResponseWriter, query *dns.Msg) (int, error) {
	answer := new(dns.Msg)
	answer.SetRcode(query, dns.RcodeNameError)
	return dns.RcodeSuccess, w.WriteMsg(answer)
}
